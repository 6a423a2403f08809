"""One hardware unit per file: its state, its instructions, its ordering rule.

Importing this package registers every instruction.
"""

from . import (
    barrier_reductions,
    barriers,
    bulk_copy,
    cluster_barrier,
    commit,
    cp_async,
    hints,
    launch_control,
    mbarrier_instructions,
    mbarrier_polls,
    memory,
    register_pool,
    special_registers,
    strong_accesses,
    tensor_copy,
    tensor_core,
    tensor_memory,
    tensor_transfers,
    tma,
    warp_instructions,
    warp_matrix,
    warpgroup_mma,
)

__all__ = [
    "barrier_reductions",
    "barriers",
    "bulk_copy",
    "cluster_barrier",
    "commit",
    "cp_async",
    "hints",
    "launch_control",
    "mbarrier_instructions",
    "mbarrier_polls",
    "memory",
    "register_pool",
    "special_registers",
    "strong_accesses",
    "tensor_copy",
    "tensor_core",
    "tensor_memory",
    "tensor_transfers",
    "tma",
    "warp_instructions",
    "warp_matrix",
    "warpgroup_mma",
]
