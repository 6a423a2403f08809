"""Conformance: generated kernels that run in the simulator and on a GPU, and must give the same bits on both.

A family draws its kernels from a seed; one kernel holds several cases, one for each CTA. All data are integers, so that
no order of additions matters. Hardware is the referee: a difference is a bug of the simulator.
"""
