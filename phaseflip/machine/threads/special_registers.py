"""Special registers: where a thread is, in its warp, CTA, cluster and grid.

Source: PTX ISA 9.1, "Special Registers".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedInstruction
from ...ir.instruction import instruction

if TYPE_CHECKING:
    from ...findings.finding import Place
    from .warp import Group

_BY_AXIS = {
    "ctaid": "blockIdx", "clusterid": "clusterIdx", "cluster_ctaid": "clusterCtaIdx", "nctaid": "gridDim",
    "nclusterid": "clusterDim", "cluster_nctaid": "clusterCtaDim",
}  # fmt: skip
"""Register with components x, y and z -> the key of `CTA.axes`."""


@instruction("mov.special_register")
def special_register(g: Group, place: Place, name: str) -> Any:
    """mov.u32 d, %name: ctaid, nctaid, clusterid, nclusterid, cluster_ctaid, cluster_nctaid (.x .y .z), cluster_ctarank,
    cluster_nctarank, laneid."""
    kind, _, component = name.partition(".")
    if kind in _BY_AXIS and component in ("x", "y", "z"):
        return g.cta.axes[_BY_AXIS[kind]]["xyz".index(component)]
    if name == "cluster_ctarank":
        return g.cta.rank
    if name == "cluster_nctarank":
        return len(g.cta.cluster.ctas)
    if name == "laneid":
        return int(g.lanes[0]) & 31 if g.n == 1 else g.lanes & 31
    raise UnsupportedInstruction(
        f"{place}: the simulator does not know the special register {name}"
    )
