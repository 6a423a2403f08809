"""tcgen05: tensor memory and the tensor core of the fifth generation, which Blackwell's data-centre GPUs alone have."""

from ...ir.traits import family

family("tcgen05", archs=("sm_100a", "sm_103a"))
