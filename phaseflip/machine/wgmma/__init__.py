"""wgmma: the MMA of a warpgroup, which Hopper alone has."""

from ...ir.traits import family

family("wgmma", archs=("sm_90a",))
