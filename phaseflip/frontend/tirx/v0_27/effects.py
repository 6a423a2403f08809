"""What the simulator executes for entries of the table that write no register, or write a group of registers.

Entry of TVM 0.27's table -> a function of the call that gives mnemonic and operands by their PTX names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded, Operands
from ..arguments import number_of
from .copies import COPIES
from .table import TableCall
from .warpgroup import WARPGROUP

Meaning = Callable[[TableCall], Decoded]


def operands(mnemonic: str, **named: str) -> Meaning:
    """The operands of the entry under the names that the instruction has here: `count="b"`."""
    return lambda c: Decoded(mnemonic, {name: c.operands[given] for name, given in named.items()})


def constant(mnemonic: str, **values: Any) -> Meaning:
    """An instruction of constant operands."""
    return lambda c: Decoded(mnemonic, dict(values))


def refuse(c: TableCall, *tokens: str) -> None:
    """UnsupportedInstruction where one of these modifiers is written."""
    for token in tokens:
        if c.has(token):
            raise UnsupportedInstruction(f"{c.ptx} is not simulated with .{token}")


def cta_group(c: TableCall) -> int:
    """1 or 2."""
    return int(c.modifiers["cta_group"].removeprefix("cta_group::"))


# -- barriers ---------------------------------------------------------------------------------------------------------


def _barrier(action: str, counted: bool) -> Meaning:
    """bar{.cta}.sync and its like; barrier{.cta}.sync.aligned is the same instruction as bar{.cta}.sync."""

    def meaning(c: TableCall) -> Decoded:
        aligned = c.entry.startswith("bar_") or bool(c.modifiers["aligned"])
        count = c.operands["b"] if counted else None
        family = "bar" if aligned else "barrier"
        return Decoded(f"{family}.{action}", {"barrier": c.operands["a"], "count": count})

    return meaning


def _cluster_arrive(c: TableCall) -> Decoded:
    return Decoded(
        "barrier.cluster.arrive",
        {"sem": c.modifiers["sem"], "aligned": bool(c.modifiers["aligned"])},
    )


def _warp_sync(c: TableCall) -> Decoded:
    mask = c.operands["membermask"]
    if not isinstance(mask, ir.Const) or mask.value != 0xFFFFFFFF:
        raise UnsupportedInstruction(f"{c.ptx} of a part of the warp is not simulated")
    return Decoded("bar.warp.sync")


# -- mbarriers --------------------------------------------------------------------------------------------------------


def _arrival(c: TableCall) -> Operands:
    """The barrier may be another CTA's (mapa). A predicate has become a branch."""
    return {
        "mbar": c.operands["addr"],
        "cta": None,
        "pred": 1,
        "sem": c.modifiers["sem"] or "release",
        "scope": c.modifiers["scope"] or "cta",
    }


def _arrive(c: TableCall) -> Decoded:
    return Decoded("mbarrier.arrive", _arrival(c) | {"count": c.operands.get("count", 1)})


def _arrive_expect_tx(c: TableCall) -> Decoded:
    return Decoded("mbarrier.arrive.expect_tx", _arrival(c) | {"tx_count": c.operands["tx_count"]})


def _arrive_no_complete(c: TableCall) -> Decoded:
    named: Operands = {"mbar": c.operands["addr"], "count": c.operands["count"], "pred": 1}
    return Decoded("mbarrier.arrive.noComplete", named)


def _complete_tx(c: TableCall) -> Decoded:
    named: Operands = {"mbar": c.operands["addr"], "tx_count": c.operands["tx_count"]}
    return Decoded("mbarrier.complete_tx", named | {"cta": None, "pred": 1})


def _mbarrier_init(c: TableCall) -> Decoded:
    refuse(c, "layout::v1")
    return Decoded("mbarrier.init", {"mbar": c.operands["addr"], "count": c.operands["count"]})


# -- fences -----------------------------------------------------------------------------------------------------------


def _fence(c: TableCall) -> Decoded:
    sem = c.modifiers["sem"]
    if sem in ("acquire", "release"):
        raise UnsupportedInstruction(f"{c.ptx} is not simulated; use fence.acq_rel")
    return Decoded("fence", {"sem": sem or "acq_rel", "scope": c.modifiers["scope"]})


def _fence_proxy(c: TableCall) -> Decoded:
    refuse(c, "alias")
    return Decoded("fence.proxy.async", {"space": c.modifiers["space"]})


# -- tcgen05 ----------------------------------------------------------------------------------------------------------


def _alloc(c: TableCall) -> Decoded:
    named = {"dst": c.operands["dst"], "n_columns": c.operands["ncols"], "cta_group": cta_group(c)}
    return Decoded("tcgen05.alloc", named)


def _dealloc(c: TableCall) -> Decoded:
    named = {"taddr": c.operands["taddr"], "n_columns": c.operands["ncols"]}
    return Decoded("tcgen05.dealloc", named | {"cta_group": cta_group(c)})


def _mma(c: TableCall) -> Decoded:
    """Collector hints name a cache of A; they change no result."""
    if any(not isinstance(m, ir.Const) or m.value for m in c.operands["disable_output_lane"]):
        raise UnsupportedInstruction("tcgen05.mma with a disable-output-lane mask is not simulated")
    kind = c.modifiers["kind"].removeprefix("kind::")
    if kind != "f16":
        raise UnsupportedInstruction(f"tcgen05.mma of kind::{kind} is not simulated")
    names = ("d_tmem", "a_desc", "b_desc", "idesc", "enable_input_d")
    named = {name: c.operands[name] for name in names}
    return Decoded("tcgen05.mma", named | {"kind": kind, "cta_group": cta_group(c)})


def _commit(c: TableCall) -> Decoded:
    mask = c.operands.get("mask")
    return Decoded(
        "tcgen05.commit",
        {"mbar": c.operands["mbar"], "cta_group": cta_group(c), "cta_mask": mask},
    )


def _tmem_transfer(mnemonic: str, packing: str) -> Meaning:
    """The registers are given by address, as neighbours or not."""

    def meaning(c: TableCall) -> Decoded:
        zero = ir.Const(0, "int32")
        registers = [register(c, r) for r in c.operands["r"]]
        return Decoded(
            mnemonic,
            {
                "taddr": c.operands["taddr"], "row": zero, "column": zero, "shape": c.modifiers["shape"],
                "num": int(c.modifiers["num"][1:]), "pack": bool(c.modifiers[packing]), "registers": registers,
            },
        )  # fmt: skip

    return meaning


def register(c: TableCall, value: Any) -> ir.Address:
    """The address of an operand that is an element of a register array."""
    if not isinstance(value, ir.Load) or value.buffer.root.scope != "local":
        raise UnsupportedInstruction(
            f"{c.ptx} is not simulated with an operand that is no element of a register array"
        )
    return ir.Address(value.buffer, value.index)


def _tensor_copy(c: TableCall) -> Decoded:
    if c.modifiers["dst_fmt"]:
        raise UnsupportedInstruction(f"{c.ptx} is not simulated: it converts formats")
    zero = ir.Const(0, "int32")
    named: Operands = {"taddr": c.operands["taddr"], "desc": c.operands["s_desc"], "row": zero}
    named |= {"column": zero, "shape": c.modifiers["shape"], "multicast": c.modifiers["multicast"]}
    return Decoded("tcgen05.cp", named | {"cta_group": cta_group(c)})


# -- the rest ---------------------------------------------------------------------------------------------------------


def _setmaxnreg(c: TableCall) -> Decoded:
    return Decoded(
        "setmaxnreg", {"action": c.modifiers["action"], "count": number_of(c.operands["nreg"])}
    )


def _prefetch(c: TableCall) -> Decoded:
    if not c.modifiers["tensormap"]:
        raise UnsupportedInstruction(f"the simulator does not know the instruction {c.ptx}")
    return Decoded("prefetch.tensormap", {"tensor_map": c.operands["addr"]})


EFFECTS: dict[str, Meaning] = {
    "bar_sync": _barrier("sync", False),
    "bar_sync_count": _barrier("sync", True),
    "bar_arrive": _barrier("arrive", True),
    "barrier_sync": _barrier("sync", False),
    "barrier_sync_count": _barrier("sync", True),
    "barrier_arrive": _barrier("arrive", True),
    "bar_warp_sync": _warp_sync,
    "barrier_cluster_arrive": _cluster_arrive,
    "barrier_cluster_wait": lambda c: Decoded(
        "barrier.cluster.wait", {"aligned": bool(c.modifiers["aligned"])}
    ),
    "mbarrier_init": _mbarrier_init,
    "mbarrier_arrive": _arrive,
    "mbarrier_arrive_nocount": _arrive,
    "mbarrier_arrive_expect_tx": _arrive_expect_tx,
    "mbarrier_arrive_no_complete_sink": _arrive_no_complete,
    "mbarrier_expect_tx": operands("mbarrier.expect_tx", mbar="addr", tx_count="tx_count"),
    "mbarrier_complete_tx": _complete_tx,
    "fence": _fence,
    "fence_mbarrier_init": constant("fence.mbarrier_init"),
    "fence_proxy": _fence_proxy,
    "griddepcontrol": lambda c: Decoded(f"griddepcontrol.{c.modifiers['action']}"),
    "nanosleep": operands("nanosleep", t="t"),
    "setmaxnreg": _setmaxnreg,
    "prefetch": _prefetch,
    "tcgen05_alloc": _alloc,
    "tcgen05_dealloc": _dealloc,
    "tcgen05_relinquish_alloc_permit": lambda c: Decoded(
        "tcgen05.relinquish_alloc_permit", {"cta_group": cta_group(c)}
    ),
    "tcgen05_mma_ss": _mma,
    "tcgen05_commit": _commit,
    "tcgen05_commit_multicast": _commit,
    "tcgen05_ld": _tmem_transfer("tcgen05.ld", "pack"),
    "tcgen05_st": _tmem_transfer("tcgen05.st", "unpack"),
    "tcgen05_wait": lambda c: Decoded(f"tcgen05.{c.modifiers['action']}"),
    "tcgen05_fence": lambda c: Decoded(f"tcgen05.{c.modifiers['action']}"),
    "tcgen05_cp": _tensor_copy,
    **COPIES,
    **WARPGROUP,
}
