"""One hardware unit per file: its state, its instructions, its ordering rule.

threads, memory, sync, copies, tcgen05, wgmma, operands: the units. cta: one CTA and its cluster. pipes, operation:
asynchronous operations in flight. Importing this package registers every instruction. It imports races and all before it.
"""

from .copies import bulk_copy, cp_async, tma
from .memory import ldmatrix as warp_matrix
from .memory import load_store as memory
from .memory import strong as strong_accesses
from .sync import (
    bar as barriers,
)
from .sync import (
    bar_red as barrier_reductions,
)
from .sync import (
    cluster_barrier,
    mbarrier_instructions,
    mbarrier_polls,
)
from .tcgen05 import (
    allocation as tensor_memory,
)
from .tcgen05 import (
    commit,
)
from .tcgen05 import (
    cp as tensor_copy,
)
from .tcgen05 import (
    ld_st as tensor_transfers,
)
from .tcgen05 import (
    mma as tensor_core,
)
from .threads import (
    hints,
    launch_control,
    special_registers,
    warp_instructions,
)
from .threads import (
    setmaxnreg as register_pool,
)
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
