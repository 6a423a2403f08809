"""One run: a program on the machine, under a schedule.

simulator: simulate and launch. grid: its clusters, one after the other. stepper: the steps of a cluster. schedule: who goes
next. explore, interleaving, dependence: all orders of a small kernel. deadlock, polling: when nobody gets anywhere.
launch_control: clusters that have not started. arrays: what comes in and goes out. Imports frontend and all before it.
"""
