"""Calls of TVM 0.27 in a PrimFunc under the names and in the order of arguments that edits and faults use: those of 0.26.

There an instruction is one intrinsic for each kind, `ptx.tcgen05_wait_ld`, with modifiers among its arguments; here it is
an entry of the table. A form says how the arguments of one are found in the other, so that an edit of an argument, or of
a modifier, becomes one of the call as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.ptx.table import TABLE, operand_layout
from tvm.ir import Call, StringImm
from tvm.tirx import BufferLoad, IntImm

from ..tvm_names import buffer_of
from .remote_views import RemoteViews

PREFIX = "tirx.ptx."
_TO_SHARED = "tirx.cuda.cvta_generic_to_shared"


@dataclass(frozen=True)
class Operand:
    """An operand of the entry; `address`: of shared memory, given without its conversion to 32 bits."""

    name: str
    address: bool = False


@dataclass(frozen=True)
class Modifier:
    """A modifier, as text, as the number after `prefix`, or (`flag`) as whether it is written."""

    slot: str
    prefix: str = ""
    flag: str = ""


@dataclass(frozen=True)
class Fixed:
    """A number that this entry stands for."""

    value: int


Part = Operand | Modifier | Fixed
Form = tuple[str, tuple[Part, ...]]

_MBAR = Operand("addr", address=True)
_SEM = (Modifier("sem"), Modifier("scope"), Modifier("space"))
_GROUP = Modifier("cta_group", prefix="cta_group::")

FORMS: dict[str, Form] = {
    "mbarrier_init": ("ptx.mbarrier_init", (_MBAR, Operand("count"))),
    "mbarrier_arrive": (
        "ptx.mbarrier_arrive",
        (_MBAR, Operand("count"), *_SEM, Fixed(1), Fixed(0), Fixed(0)),
    ),
    "mbarrier_arrive_nocount": (
        "ptx.mbarrier_arrive",
        (_MBAR, *_SEM, Fixed(0), Fixed(0), Fixed(0)),
    ),
    "mbarrier_arrive_expect_tx": (
        "ptx.mbarrier_arrive_expect_tx",
        (_MBAR, Operand("tx_count"), *_SEM, Fixed(0), Fixed(0)),
    ),
    "mbarrier_expect_tx": ("ptx.mbarrier_expect_tx", (_MBAR, Operand("tx_count"))),
    "fence_proxy": ("ptx.fence_proxy_async", (Modifier("space"),)),
    "fence_mbarrier_init": ("ptx.fence_mbarrier_init", ()),
    "bar_sync_count": ("ptx.bar_sync", (Operand("a"), Operand("b"))),
    "barrier_cluster_arrive": (
        "ptx.barrier_cluster_arrive",
        (Modifier("sem"), Modifier("aligned", flag="aligned")),
    ),
    "barrier_cluster_wait": (
        "ptx.barrier_cluster_wait",
        (Modifier("sem", flag="acquire"), Modifier("aligned", flag="aligned")),
    ),
    "cp_async_bulk_commit_group": ("ptx.cp_async_bulk_commit_group", ()),
    "cp_async_bulk_wait_group": (
        "ptx.cp_async_bulk_wait_group",
        (Operand("group"), Modifier("read", flag="read")),
    ),
    "tcgen05_alloc": (
        "ptx.tcgen05_alloc",
        (Operand("dst", address=True), Operand("ncols"), _GROUP),
    ),
    "tcgen05_dealloc": ("ptx.tcgen05_dealloc", (Operand("taddr"), Operand("ncols"), _GROUP)),
    "tcgen05_relinquish_alloc_permit": ("ptx.tcgen05_relinquish_alloc_permit", (_GROUP,)),
    "tcgen05_commit": (
        "ptx.tcgen05_commit",
        (Operand("mbar", address=True), _GROUP, Fixed(0)),
    ),
    "tcgen05_commit_multicast": (
        "ptx.tcgen05_commit",
        (Operand("mbar", address=True), _GROUP, Operand("mask")),
    ),
    "wgmma_fence": ("ptx.wgmma_fence", ()),
    "wgmma_commit_group": ("ptx.wgmma_commit_group", ()),
    "wgmma_wait_group": ("ptx.wgmma_wait_group", (Operand("group"),)),
    "wgmma_f16_ss": (
        "ptx.wgmma_mma_async_ss",
        (*[Fixed(0)] * 9, Operand("scale_d"), Operand("a_desc"), Operand("b_desc")),
    ),
}
"""Entry of the table -> name and arguments of TVM 0.26."""

BY_ACTION = {"tcgen05_fence": "ptx.tcgen05_", "tcgen05_wait": "ptx.tcgen05_"}
"""Entry without operands whose first modifier, `fence::after_thread_sync`, ends the name."""

HELPERS = {
    "cuda.mbarrier_wait": "ptx.mbarrier_try_wait",
    "cuda.mbarrier_wait_acquire_cluster": "ptx.mbarrier_try_wait_acquire_cluster",
    "cuda.elect_sync": "ptx.elect_sync",
    "cuda.wgmma_encode_matrix_descriptor": "ptx.wgmma_encode_matrix_descriptor",
    "cuda.tcgen05_encode_matrix_descriptor": "ptx.tcgen05_encode_matrix_descriptor",
}
"""Helper of T.cuda -> its name in TVM 0.26, with the same arguments."""


def name_of(call: Any) -> str:
    """The name of a call, without "tirx."."""
    name = str(call.op.name)
    entry = name.removeprefix(PREFIX)
    if entry == name:
        short = name.removeprefix("tirx.")
        return HELPERS.get(short, short)
    if entry in BY_ACTION:
        return BY_ACTION[entry] + str(call.args[0].value).replace("::", "_")
    return FORMS[entry][0] if entry in FORMS else name.removeprefix("tirx.")


def arguments(call: Any) -> list[Any]:
    """The arguments of a call in the order of its name."""
    entry = str(call.op.name).removeprefix(PREFIX)
    if entry not in FORMS:
        return [] if entry in BY_ACTION else list(call.args)
    return [_read(call, entry, part) for part in FORMS[entry][1]]


def with_arguments(call: Any, values: Mapping[int, Any]) -> list[Any]:
    """All arguments of the call as TVM wants them, those at the given positions (of its name) replaced."""
    entry = str(call.op.name).removeprefix(PREFIX)
    args = list(call.args)
    if entry not in FORMS:
        return [values.get(i, old) for i, old in enumerate(args)]
    for i, value in values.items():
        part = FORMS[entry][1][i]
        if isinstance(part, Fixed):
            raise ValueError(f"{name_of(call)} has no argument {i} here")
        at = _position(call, entry, part)
        args[at] = _written(part, value, args[at])
    return args


def _position(call: Any, entry: str, part: Operand | Modifier) -> int:
    slots = TABLE[entry].slots
    first = len(call.args) - 1 - len(slots)
    if isinstance(part, Modifier):
        return first + [s.name for s in slots].index(part.slot)
    tokens = {s.name: str(a.value) for s, a in zip(slots, call.args[first:-1], strict=True)}
    rows = {slot.name: at for slot, at, _ in operand_layout(TABLE[entry], tokens)}
    return rows[part.name]


def _read(call: Any, entry: str, part: Part) -> Any:
    if isinstance(part, Fixed):
        return IntImm("int32", part.value)
    value = call.args[_position(call, entry, part)]
    if isinstance(part, Operand):
        return value.args[0] if part.address and _is_conversion(value) else value
    token = str(value.value)
    if part.flag:
        return IntImm("bool", int(token == part.flag))
    return IntImm("int32", int(token.removeprefix(part.prefix))) if part.prefix else value


def _written(part: Operand | Modifier, value: Any, old: Any) -> Any:
    if isinstance(part, Operand):
        if part.address and _is_conversion(old) and not _is_conversion(value):
            return Call(old.op, [value], attrs=old.attrs, span=old.span, ret_ty=old.ty)
        return value
    if part.flag:
        return StringImm(part.flag if int(value.value) else "")
    return StringImm(f"{part.prefix}{int(value.value)}") if part.prefix else value


def _is_conversion(e: Any) -> bool:
    return isinstance(e, Call) and str(e.op.name) == _TO_SHARED


def same_element_of(address: Any, buffer: Any) -> Any:
    """The address of the same element of another buffer."""
    load = BufferLoad(buffer, list(address.args[0].indices))
    return Call(address.op, [load], attrs=address.attrs, span=address.span, ret_ty=address.ty)


class TableCalls:
    """The calls of one function; an arrival at a view of another CTA's barrier is one at the barrier that it views."""

    def __init__(self) -> None:
        self.views = RemoteViews()

    def note(self, node: Any) -> None:
        """Follow what views of barriers are made of."""
        self.views.note(node)

    def name(self, call: Any) -> str:
        """As in 0.26."""
        return name_of(call)

    def arguments(self, call: Any) -> list[Any]:
        """As in 0.26; the flag that says so is set where another CTA's barrier is meant."""
        args = arguments(call)
        local = self._local(call)
        if local is not None:
            args[0] = same_element_of(args[0], local)
            if name_of(call) in _ARRIVALS:
                args[-2] = IntImm("int32", 1)
        return args

    def with_arguments(self, call: Any, values: Mapping[int, Any]) -> list[Any]:
        """With some replaced; another element of the local barriers stands for that of the view."""
        local = self._local(call)
        if local is not None and 0 in values:
            view = buffer_of(arguments(call)[0].args[0])
            if buffer_of(values[0].args[0]).same_as(local):
                values = {**values, 0: same_element_of(values[0], view)}
        return with_arguments(call, values)

    def own_arrival(self, call: Any) -> tuple[str, list[Any]]:
        """The same entry with the local barrier, without semantics and scope."""
        local = self._local(call)
        address = arguments(call)[0]
        own = address if local is None else same_element_of(address, local)
        entry = str(call.op.name).removeprefix(PREFIX)
        sem = [i for i, p in enumerate(FORMS[entry][1]) if p == _SEM[0]][0]
        tokens = {sem + i: StringImm(token) for i, token in enumerate(("", "", "shared"))}
        return call.op.name.removeprefix("tirx."), with_arguments(call, {0: own, **tokens})

    def expectation(self, call: Any) -> tuple[str, list[Any]]:
        """mbarrier.expect_tx.relaxed.cta.shared::cta.b64"""
        tokens = ("expect_tx", "relaxed", "cta", "shared::cta", "b64", "")
        return "ptx.mbarrier_expect_tx", [*call.args[:2], *map(StringImm, tokens)]

    def _local(self, call: Any) -> Any:
        """The local barriers that the call's barrier is a view of; None where it is local itself."""
        entry = str(call.op.name).removeprefix(PREFIX)
        if not FORMS.get(entry, ("", ()))[1][:1] == (_MBAR,):
            return None
        address = arguments(call)[0]
        load = address.args[0] if isinstance(address, Call) and address.args else None
        return None if load is None else self.views.local_of(getattr(load, "source", None))


_ARRIVALS = ("ptx.mbarrier_arrive", "ptx.mbarrier_arrive_expect_tx")
