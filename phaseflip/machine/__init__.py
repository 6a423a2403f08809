"""One hardware unit per file: its state, its instructions, its ordering rule.

Importing this package registers every instruction.
"""

from .sync import (
    bar_red as barrier_reductions,
    bar as barriers,
    cluster_barrier,
    mbarrier_instructions,
    mbarrier_polls,
)
from .copies import bulk_copy, cp_async, tma
from .tcgen05 import (
    commit,
    cp as tensor_copy,
    mma as tensor_core,
    allocation as tensor_memory,
    ld_st as tensor_transfers,
)
from .threads import (
    hints,
    launch_control,
    setmaxnreg as register_pool,
    special_registers,
    warp_instructions,
)
from .memory import load_store as memory, strong as strong_accesses, ldmatrix as warp_matrix
from .wgmma import mma as warpgroup_mma

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
