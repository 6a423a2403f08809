"""How TVM 0.26 names its intrinsics and orders their arguments: the table of decoders to PTX mnemonics.

`DECODE_0_26` is keyed by intrinsic, `HELPERS_0_26` by CUDA helper that TVM emits as source text.
"""

from __future__ import annotations

from typing import Any

from ....errors import BadInput, UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded, Operands, dtype_bytes
from ....machine.tcgen05.instruction_descriptor import InstructionDescriptor
from ..arguments import Decoder, Spelled, number_of, operands, spells, text_of, with_cta_group
from .copies import COPIES
from .strong import STRONG, vector_bytes
from .warpgroup import WARPGROUP


def _ld(args: list[Any]) -> Decoded:
    """[(dst,) addr, policy, type, weak, space, cop, vec, ptx_type, has_policy, number of dst, l1, l2, prefetch]."""
    to_register = number_of(args[-4])
    if to_register > 1:
        raise UnsupportedInstruction(
            "ptx.ld into scattered registers is not simulated; pass dst= the first of neighbouring ones"
        )
    shifted = args[to_register:]
    space, vec, ptx_type = text_of(shifted[4]), text_of(shifted[6]), text_of(shifted[7])
    nbytes = vector_bytes(space, vec, ptx_type)
    mnemonic = f"ld.{space.split('::')[0]}"
    if to_register:
        return Decoded(mnemonic, {"dst": args[0], "addr": args[1], "nbytes": nbytes})
    return Decoded(
        mnemonic, {"dst": None, "addr": args[0], "nbytes": nbytes, "dtype": text_of(args[2])}
    )


def _st(args: list[Any]) -> Decoded:
    """Form with a register source: [addr, src, policy, weak, space, cop, vec, ptx_type, ..., from_src = 1]."""
    if number_of(args[-1]) != 1:
        raise UnsupportedInstruction(
            "ptx.st of separate values is not simulated; pass src= a register buffer"
        )
    space, vec, ptx_type = text_of(args[4]), text_of(args[6]), text_of(args[7])
    nbytes = vector_bytes(space, vec, ptx_type)
    return Decoded(
        f"st.{space.split('::')[0]}", {"addr": args[0], "src": args[1], "nbytes": nbytes}
    )


@spells("tcgen05.mma")
def _mma(args: list[Any]) -> Operands:
    """[d_type, a_type, b_type, d_tmem, a, b, idesc, a_in_tmem, cta_group, enable_d, scale_d, ws, lanes..., (pred)]."""
    d_type, a_type, b_type = (text_of(a) for a in args[:3])
    cta_group, masks = number_of(args[8]), args[12:]
    if number_of(args[7]) or number_of(args[10]) or number_of(args[11]):
        raise UnsupportedInstruction(
            "tcgen05.mma with A in TMEM, scale-input-d or .ws is not simulated"
        )
    if len(masks) != (4 if cta_group == 1 else 8) or any(number_of(m) for m in masks):
        raise UnsupportedInstruction(
            "tcgen05.mma with a predicate or a disable-output-lane mask is not simulated"
        )
    kinds = {"float16": "f16", "bfloat16": "f16"}
    if a_type not in kinds or a_type != b_type:
        raise UnsupportedInstruction(
            f"tcgen05.mma with A {a_type}, B {b_type} and D {d_type} is not simulated"
        )
    return {
            "d_tmem": args[3], "a_desc": args[4], "b_desc": args[5], "idesc": args[6], "kind": kinds[a_type],
            "enable_input_d": args[9], "cta_group": cta_group,
        }  # fmt: skip


@spells("tcgen05.commit")
def _commit(args: list[Any]) -> Operands:
    """[mbar, cta_group, cta_mask]. TVM emits the form without a mask for a constant mask of at most one bit."""
    if len(args) != 3:
        raise UnsupportedInstruction("tcgen05.commit with a predicate is not simulated")
    mask = args[2]
    if isinstance(mask, ir.Const) and int(mask.value).bit_count() <= 1:
        mask = None
    return {"mbar": args[0], "cta_group": number_of(args[1]), "cta_mask": mask}


def _tmem_transfer(mnemonic: str) -> Decoder:
    """[taddr, row, column, shape, num, pack, *registers]; the addresses of the registers are taken."""
    return lambda args: _tmem_registers(mnemonic, args)


def _tmem_registers(mnemonic: str, args: list[Any]) -> Decoded:
    registers = [ir.Address(r.buffer, r.index) for r in args[6:]]
    return Decoded(
        mnemonic,
        {
            "taddr": args[0], "row": args[1], "column": args[2], "shape": text_of(args[3]), "num": number_of(args[4]),
            "pack": bool(number_of(args[5])), "registers": registers,
        },
    )  # fmt: skip


@spells("add.pointer")
def _pointer_offset(args: list[Any]) -> Operands:
    pointer = args[0]
    if not isinstance(pointer, ir.Address):
        raise UnsupportedInstruction(
            "tvm_builtin_pointer_offset of a pointer without element type is not simulated"
        )
    return {"pointer": pointer, "offset": args[1], "element_bytes": dtype_bytes(pointer.buffer)}


@spells("mbarrier.arrive")
def _mbarrier_arrive(args: list[Any]) -> Operands:
    """[mbar, (count), (remote), (pred), sem, scope, space, has_count, has_remote, has_pred]."""
    has_count, has_remote, has_pred = (number_of(a) for a in args[-3:])
    arrival = _arrival(args[0], args[1 + has_count : -3], has_remote, has_pred)
    return arrival | {"count": args[1] if has_count else 1}


@spells("mbarrier.arrive.expect_tx")
def _mbarrier_arrive_expect_tx(args: list[Any]) -> Operands:
    """[mbar, bytes, (remote), (pred), sem, scope, space, has_remote, has_pred]."""
    arrival = _arrival(args[0], args[2:-2], number_of(args[-2]), number_of(args[-1]))
    return arrival | {"tx_count": args[1]}


@spells("mbarrier.arrive.noComplete")
def _mbarrier_arrive_no_complete(args: list[Any]) -> Operands:
    """[mbar, count, (pred), space, has_pred]."""
    pred = args[2] if number_of(args[-1]) else 1
    return {"mbar": args[0], "count": args[1], "pred": pred}


@spells("mbarrier.complete_tx")
def _mbarrier_complete_tx(args: list[Any]) -> Operands:
    """[mbar, bytes, (remote), (pred), sem, scope, space, has_remote, has_pred]."""
    has_remote, has_pred = number_of(args[-2]), number_of(args[-1])
    named: Operands = {"mbar": args[0], "tx_count": args[1]}
    named |= {
        "cta": args[2] if has_remote else None,
        "pred": args[2 + has_remote] if has_pred else 1,
    }
    return named


def _arrival(mbar: Any, rest: list[Any], has_remote: int, has_pred: int) -> Operands:
    """The operands of an arrival from [(remote), (pred), sem, scope, space]."""
    return {
        "mbar": mbar,
        "cta": rest[0] if has_remote else None,
        "pred": rest[has_remote] if has_pred else 1,
        "sem": text_of(rest[-3]) or "release",
        "scope": text_of(rest[-2]) or "cta",
    }


@spells("encode.instruction_descriptor")
def _instruction_descriptor(args: list[Any]) -> Operands:
    """[dst, d_type, a_type, b_type, M, N, K, trans_a, trans_b, cta_group, neg_a, neg_b, sat_d, is_sparse]."""
    d, a, b = (_FORMATS.get(text_of(t), text_of(t)) for t in args[1:4])
    m, n, k, trans_a, trans_b, cta_group, neg_a, neg_b, sat_d, sparse = map(number_of, args[4:])
    flags = {"a_mn_major": bool(trans_a), "b_mn_major": bool(trans_b), "sparse": bool(sparse)}
    flags |= {"negate_a": bool(neg_a), "negate_b": bool(neg_b), "saturate": bool(sat_d)}
    kind = _KINDS.get(a, "f8f6f4")
    try:
        fields = InstructionDescriptor(kind, m, n, d, a, b, **flags)
        value = fields.encode()
        fields.check_shape(cta_group)
    except BadInput as error:
        raise UnsupportedInstruction(str(error)) from None
    if k != fields.k:
        raise UnsupportedInstruction(f"tcgen05.mma.kind::{kind} has K={fields.k}, not {k}")
    return {"dst": args[0], "value": value}


_FORMATS = {"tensor_float32": "tfloat32", "tf32": "tfloat32", "float8_e4m3fnuz": "float8_e4m3fn"}
_KINDS = {"float16": "f16", "bfloat16": "f16", "tfloat32": "tf32", "int8": "i8", "uint8": "i8"}
"""TVM's name of an element type -> ours; ours -> kind of MMA, f8f6f4 for all others."""


def _try_wait(scope: str) -> Decoder:
    return Spelled(
        "mbarrier.try_wait.parity",
        lambda args: {"mbar": args[0], "parity": args[1], "scope": scope},
    )


def _cta_reduction(op: str) -> Decoder:
    """[predicate]: over all threads of the CTA."""
    return Spelled(
        "bar.red", lambda args: {"op": op, "barrier": 0, "count": None, "predicate": args[0]}
    )


def _barrier_reduction(op: str) -> Decoder:
    """[barrier, count, predicate]."""
    return Spelled(
        "bar.red",
        lambda args: {"op": op, "barrier": args[0], "count": args[1], "predicate": args[2]},
    )


@spells("mapa")
def _mapa(args: list[Any]) -> Operands:
    """[address, rank, space, type, dtype]: of a generic address, or of a 32-bit shared one."""
    return {"addr": args[0], "cta": args[1]}


@spells("mov.special_register")
def _special_register(args: list[Any]) -> Operands:
    """[bits, name]."""
    return {"name": text_of(args[1])}


@spells("fence.proxy.async")
def _fence_proxy_async(args: list[Any]) -> Operands:
    return {"space": text_of(args[0])}


def _constant(mnemonic: str, **operands: Any) -> Decoder:
    return Spelled(mnemonic, lambda args: dict(operands))


DECODE_0_26: dict[str, Decoder] = {
    "tirx.cuda.__shfl_sync": operands("shfl.sync.idx", "mask", "value", "source", "width"),
    "tirx.cuda.thread_rank": operands("thread_rank"),
    "tirx.cuda.cta_sync": _constant("bar.sync", barrier=0, count=None),
    "tirx.cuda.syncthreads_and": _cta_reduction("and"),
    "tirx.cuda.syncthreads_or": _cta_reduction("or"),
    "tirx.cuda.warp_sync": _constant("bar.warp.sync"),
    "tirx.cuda.warpgroup_sync": Spelled(
        "bar.sync", lambda args: {"barrier": args[0], "count": 128}
    ),
    "tirx.ptx.bar_sync": operands("bar.sync", "barrier", "count"),
    "tirx.ptx.barrier_sync": operands("barrier.sync", "barrier", "count"),
    "tirx.ptx.bar_arrive": operands("bar.arrive", "barrier", "count"),
    "tirx.cuda.cluster_sync": _constant("barrier.cluster.sync"),
    "tirx.ptx.barrier_cluster_arrive": Spelled(
        "barrier.cluster.arrive",
        lambda args: {"sem": text_of(args[0]), "aligned": bool(number_of(args[1]))},
    ),
    "tirx.ptx.barrier_cluster_wait": Spelled(
        "barrier.cluster.wait", lambda args: {"aligned": bool(number_of(args[1]))}
    ),
    "tirx.ptx.clc_try_cancel": operands("clusterlaunchcontrol.try_cancel", "addr", "mbar"),
    "tirx.ptx.clc_query_cancel": Spelled(
        "clusterlaunchcontrol.query_cancel", lambda args: {"addr": args[0]}
    ),
    "tirx.ptx.mapa": _mapa,
    "tirx.cuda.cvta_generic_to_shared": operands("cvta.to.shared", "addr"),
    "tirx.ptr_byte_offset": Spelled(
        "add.pointer", lambda args: {"pointer": args[0], "offset": args[1], "element_bytes": 1}
    ),
    "tirx.ptx.fetch_register": _special_register,
    "tirx.cuda.thread_fence": _constant("fence", sem="sc", scope="gpu"),
    "tirx.ptx.fence": Spelled(
        "fence", lambda args: {"sem": text_of(args[0]), "scope": text_of(args[1])}
    ),
    "tirx.ptx.mbarrier_arrive": _mbarrier_arrive,
    "tirx.ptx.mbarrier_arrive_expect_tx": _mbarrier_arrive_expect_tx,
    "tirx.ptx.mbarrier_arrive_no_complete": _mbarrier_arrive_no_complete,
    "tirx.ptx.mbarrier_complete_tx": _mbarrier_complete_tx,
    "tirx.ptx.griddepcontrol_wait": operands("griddepcontrol.wait"),
    "tirx.ptx.griddepcontrol_launch_dependents": operands("griddepcontrol.launch_dependents"),
    "tirx.cuda.nano_sleep": operands("nanosleep", "t"),
    "tirx.ptx.setmaxnreg": Spelled(
        "setmaxnreg",
        lambda args: {
            "action": "inc" if number_of(args[0]) else "dec",
            "count": number_of(args[1]),
        },
    ),
    "tirx.ptx.elect_sync": operands("elect.sync"),
    "tirx.ptx.fence_mbarrier_init": operands("fence.mbarrier_init"),
    "tirx.ptx.fence_proxy_async": _fence_proxy_async,
    "tirx.ptx.ld": _ld,
    "tirx.ptx.st": _st,
    "tirx.ptx.mbarrier_init": operands("mbarrier.init", "mbar", "count"),
    "tirx.ptx.mbarrier_try_wait": _try_wait("cta"),
    "tirx.ptx.mbarrier_try_wait_acquire_cluster": _try_wait("cluster"),
    "tirx.ptx.mbarrier_try_wait_once": operands(
        "mbarrier.try_wait.parity.once", "mbar", "parity", "ticks"
    ),
    "tirx.ptx.tcgen05_alloc": with_cta_group("tcgen05.alloc", "dst", "n_columns"),
    "tirx.ptx.tcgen05_dealloc": with_cta_group("tcgen05.dealloc", "taddr", "n_columns"),
    "tirx.ptx.tcgen05_relinquish_alloc_permit": with_cta_group("tcgen05.relinquish_alloc_permit"),
    "tirx.ptx.tcgen05_encode_matrix_descriptor": operands(
        "encode.matrix_descriptor", "dst", "addr", "leading", "stride", "swizzle"
    ),
    "tirx.ptx.tcgen05_encode_instr_descriptor": _instruction_descriptor,
    "tirx.ptx.tcgen05_mma": _mma,
    "tirx.ptx.tcgen05_commit": _commit,
    "tirx.ptx.tcgen05_ld": _tmem_transfer("tcgen05.ld"),
    "tirx.ptx.tcgen05_st": _tmem_transfer("tcgen05.st"),
    "tirx.ptx.tcgen05_wait_ld": operands("tcgen05.wait::ld"),
    "tirx.ptx.tcgen05_wait_st": operands("tcgen05.wait::st"),
    "tirx.ptx.tcgen05_fence_before_thread_sync": operands("tcgen05.fence::before_thread_sync"),
    "tirx.ptx.tcgen05_fence_after_thread_sync": operands("tcgen05.fence::after_thread_sync"),
    **COPIES,
    **STRONG,
    **WARPGROUP,
}
"""TVM 0.26 intrinsic -> decoder of its argument list."""


def _convert_pair(source: str, target: str) -> Decoder:
    return Spelled(
        "cvt.x2", lambda args: {"dst": args[0], "src": args[1], "source": source, "target": target}
    )


HELPERS_0_26: dict[str, Decoder] = {
    "tvm_builtin_pointer_offset": _pointer_offset,
    "tvm_builtin_smem_desc_add_16B_offset": operands("add.matrix_descriptor", "desc", "offset"),
    "ptx_mbarrier_expect_tx": operands("mbarrier.expect_tx", "mbar", "tx_count"),  # ours: TVM has none
    "ptx_mbarrier_arrive_state": operands("mbarrier.arrive.state", "mbar"),
    "ptx_mbarrier_test_wait": operands("mbarrier.test_wait", "mbar", "state"),
    "ptx_mbarrier_test_wait_parity": operands("mbarrier.test_wait.parity", "mbar", "parity"),
    "ptx_mbarrier_try_wait_state": operands("mbarrier.try_wait", "mbar", "state"),
    **{f"ptx_bar_red_{op}": _barrier_reduction(op) for op in ("and", "or", "popc")},
    **{
        f"tvm_builtin_cast_{a}x2_{b}x2": _convert_pair(a, b)
        for a, b in (
            ("float32", "float16"), ("float16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"),
        )
    },
}  # fmt: skip
"""CUDA helper that TVM 0.26 emits as source text -> decoder of its argument list."""
