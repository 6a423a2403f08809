"""Kernels on a GPU: which fits, compiled where, run in a process of its own.

devices: which GPU there is. nvcc, poll_limit, build, prebuilt: compiled kernels and their folders. runtime: the calls, in
this process. worker: the same in a process of its own, a runner of gemm. lock: who has the GPU. Imports gemm and all before.
"""
