"""tcgen05, which Blackwell's data-centre GPUs alone have: the tensor core of the fifth generation, and its memory.

allocation, layout: of Tensor Memory. mma, cp, commit: what a thread issues. ld_st: what warps do.
"""

from ...ir.traits import family

family("tcgen05", archs=("sm_100a", "sm_103a"))
