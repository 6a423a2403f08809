"""GEMM kernels under test: which there are, their inputs, references and verdicts.

kernel, shape_rule: what a kernel file exports, and how it is found. target: what it asks of a GPU. inputs, arguments:
matrices by name and seed, arguments of any kernel. oracle, poison: is D right, and was it written. verify: one run and its
verdict, in the simulator or by a runner. compare: counters side by side. Imports run and all before it; it knows no GPU.
"""
