"""The instruction registry, and the table that decodes TVM 0.26 intrinsics to PTX mnemonics with named operands.

An instruction's meaning is one function in `machine/`, registered under its PTX mnemonic with `@instruction`. TVM names
and orders its intrinsics as it likes; only `DECODE_0_26` knows. A call that is in no table is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import device_ir as ir
from .errors import UnsupportedInstruction, located

Operands = dict[str, Any]
"""Operand name -> expression of the device IR, a list of such, or a plain Python value known at translation."""


@dataclass(frozen=True)
class Instruction:
    """Meaning of one mnemonic: `function(group, site, **operands)` returns a value, None, or (if `waits`) a Wait.

    `uniform` names operands that must be one value for all lanes that execute together: the translator splits the
    group by value first.
    """

    mnemonic: str
    function: Callable[..., Any]
    waits: bool = False
    uniform: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decoded:
    """One call of the kernel: mnemonic, operands by their PTX names, and the element type of its value, if any."""

    mnemonic: str
    operands: Operands = field(default_factory=dict)


REGISTRY: dict[str, Instruction] = {}


def instruction(
    mnemonic: str, *, waits: bool = False, uniform: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the meaning of `mnemonic`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if mnemonic in REGISTRY:
            raise ValueError(f"{mnemonic} is registered twice: each mnemonic has one function")
        REGISTRY[mnemonic] = Instruction(mnemonic, located(function), waits, uniform)
        return function

    return register


def decode(call: ir.Call) -> Decoded:
    """The PTX meaning of a TVM call; UnsupportedInstruction names the intrinsic and its line when there is none."""
    decoder = DECODE_0_26.get(call.name)
    if call.name == "tirx.cuda.func_call":
        name = _text(call.args[0])
        decoder = HELPERS_0_26.get(name)
        if decoder is None:
            raise UnsupportedInstruction(
                f"{call.site}: the simulator does not know the CUDA helper {name}; "
                "use an intrinsic of CONTRIBUTING.md's list or add its meaning"
            )
        return _decoded(decoder, call, call.args[1:-1])  # the last one is the source text
    if decoder is None:
        raise UnsupportedInstruction(
            f"{call.site}: the simulator does not know the instruction {call.name.removeprefix('tirx.')}; "
            "CONTRIBUTING.md says how to add it"
        )
    decoded = _decoded(decoder, call, call.args)
    if decoded.mnemonic not in REGISTRY:
        raise UnsupportedInstruction(
            f"{call.site}: the simulator does not know the instruction {decoded.mnemonic} ({call.name}); "
            "CONTRIBUTING.md says how to add it"
        )
    return decoded


Decoder = Callable[[list[Any]], Decoded]


def _decoded(decoder: Decoder, call: ir.Call, args: list[Any]) -> Decoded:
    """The decoder's result; its refusal, and arguments that it was not written for, name the line."""
    try:
        return decoder(args)
    except UnsupportedInstruction as error:
        raise UnsupportedInstruction(f"{call.site}: {error}") from None
    except (KeyError, IndexError, ValueError) as error:
        name = call.name.removeprefix("tirx.")
        raise UnsupportedInstruction(
            f"{call.site}: the simulator does not know this form of {name} ({len(args)} arguments)"
        ) from error


def _text(e: Any) -> str:
    if not isinstance(e, ir.Const):
        raise UnsupportedInstruction(f"an instruction modifier is not a constant: {e}")
    return str(e.value)


def _number(e: Any) -> int:
    if not isinstance(e, ir.Const):
        raise UnsupportedInstruction(f"an instruction modifier is not a constant: {e}")
    return int(e.value)


def _operands(mnemonic: str, *names: str) -> Decoder:
    """The arguments are the operands, in this order."""
    return lambda args: Decoded(mnemonic, dict(zip(names, args, strict=True)))


def _cta_group(mnemonic: str, *names: str) -> Decoder:
    """Operands, then the constant cta_group."""

    def decoder(args: list[Any]) -> Decoded:
        operands: Operands = dict(zip(names, args[:-1], strict=True))
        return Decoded(mnemonic, operands | {"cta_group": _number(args[-1])})

    return decoder


_ELEMENT_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def _vector_bytes(vec: str, ptx_type: str) -> int:
    return int(vec.removeprefix("v") or 1) * _ELEMENT_BYTES[ptx_type[1:]]


def _ld(args: list[Any]) -> Decoded:
    """[(dst,) addr, policy, type, weak, space, cop, vec, ptx_type, has_policy, number of dst, l1, l2, prefetch]."""
    to_register = _number(args[-4])
    if to_register > 1:
        raise UnsupportedInstruction(
            "ptx.ld into scattered registers is not simulated; pass dst= the first of neighbouring ones"
        )
    shifted = args[to_register:]
    space, vec, ptx_type = _text(shifted[4]), _text(shifted[6]), _text(shifted[7])
    nbytes = _vector_bytes(vec, ptx_type)
    mnemonic = f"ld.{space.split('::')[0]}"
    if to_register:
        return Decoded(mnemonic, {"dst": args[0], "addr": args[1], "nbytes": nbytes})
    return Decoded(
        mnemonic, {"dst": None, "addr": args[0], "nbytes": nbytes, "dtype": _text(args[2])}
    )


def _st(args: list[Any]) -> Decoded:
    """Form with a register source: [addr, src, policy, weak, space, cop, vec, ptx_type, ..., from_src = 1]."""
    if _number(args[-1]) != 1:
        raise UnsupportedInstruction(
            "ptx.st of separate values is not simulated; pass src= a register buffer"
        )
    space, vec, ptx_type = _text(args[4]), _text(args[6]), _text(args[7])
    nbytes = _vector_bytes(vec, ptx_type)
    return Decoded(
        f"st.{space.split('::')[0]}", {"addr": args[0], "src": args[1], "nbytes": nbytes}
    )


def _mma(args: list[Any]) -> Decoded:
    """[d_type, a_type, b_type, d_tmem, a, b, idesc, a_in_tmem, cta_group, enable_d, scale_d, ws, lanes..., (pred)]."""
    d_type, a_type, b_type = (_text(a) for a in args[:3])
    cta_group, masks = _number(args[8]), args[12:]
    if _number(args[7]) or _number(args[10]) or _number(args[11]):
        raise UnsupportedInstruction(
            "tcgen05.mma with A in TMEM, scale-input-d or .ws is not simulated"
        )
    if len(masks) != (4 if cta_group == 1 else 8) or any(_number(m) for m in masks):
        raise UnsupportedInstruction(
            "tcgen05.mma with a predicate or a disable-output-lane mask is not simulated"
        )
    kinds = {"float16": "f16", "bfloat16": "f16"}
    if a_type not in kinds or a_type != b_type:
        raise UnsupportedInstruction(
            f"tcgen05.mma with A {a_type}, B {b_type} and D {d_type} is not simulated"
        )
    return Decoded(
        "tcgen05.mma",
        {
            "d_tmem": args[3], "a_desc": args[4], "b_desc": args[5], "idesc": args[6], "kind": kinds[a_type],
            "enable_input_d": args[9], "cta_group": cta_group,
        },
    )  # fmt: skip


def _commit(args: list[Any]) -> Decoded:
    if len(args) != 3:
        raise UnsupportedInstruction("tcgen05.commit with a predicate is not simulated")
    return Decoded(
        "tcgen05.commit", {"mbar": args[0], "cta_group": _number(args[1]), "cta_mask": args[2]}
    )


def _tmem_transfer(mnemonic: str) -> Decoder:
    """[taddr, row, column, shape, num, pack, *registers]; the addresses of the registers are taken."""
    return lambda args: _tmem_registers(mnemonic, args)


def _tmem_registers(mnemonic: str, args: list[Any]) -> Decoded:
    registers = [ir.Address(r.buffer, r.index) for r in args[6:]]
    return Decoded(
        mnemonic,
        {
            "taddr": args[0], "row": args[1], "column": args[2], "shape": _text(args[3]), "num": _number(args[4]),
            "pack": bool(_number(args[5])), "registers": registers,
        },
    )  # fmt: skip


def _pointer_offset(args: list[Any]) -> Decoded:
    pointer = args[0]
    if not isinstance(pointer, ir.Address):
        raise UnsupportedInstruction(
            "tvm_builtin_pointer_offset of a pointer without element type is not simulated"
        )
    return Decoded(
        "add.pointer",
        {"pointer": pointer, "offset": args[1], "element_bytes": dtype_bytes(pointer.buffer)},
    )


def dtype_bytes(buffer: ir.Buffer) -> int:
    """Size in bytes of one element of the buffer."""
    return dtype_size(buffer.dtype)


def dtype_size(dtype: str) -> int:
    """Size in bytes of one element of `dtype` ("float16" 2, "bool" 1, "float8_e4m3fn" 1, "handle" 8)."""
    if dtype in ("bool", "int8", "uint8") or dtype.startswith("float8"):
        return 1
    if dtype == "handle":
        return 8
    digits = "".join(c for c in dtype.split("x")[0] if c.isdigit())
    lanes = int(dtype.split("x")[1]) if "x" in dtype else 1
    return int(digits) // 8 * lanes


def _mbarrier_arrive(args: list[Any]) -> Decoded:
    """[mbar, (count), (remote), (pred), sem, scope, space, has_count, has_remote, has_pred]."""
    has_count, has_remote, has_pred = (_number(a) for a in args[-3:])
    if has_remote or has_pred or _text(args[-6]) == "relaxed":
        raise UnsupportedInstruction(
            "mbarrier.arrive on another CTA, relaxed or with a predicate is not simulated"
        )
    return Decoded("mbarrier.arrive", {"mbar": args[0], "count": args[1] if has_count else 1})


def _mbarrier_arrive_expect_tx(args: list[Any]) -> Decoded:
    """[mbar, bytes, (remote), (pred), sem, scope, space, has_remote, has_pred]."""
    if _number(args[-2]) or _number(args[-1]) or _text(args[-5]) == "relaxed":
        raise UnsupportedInstruction(
            "mbarrier.arrive.expect_tx on another CTA, relaxed or predicated is not simulated"
        )
    return Decoded("mbarrier.arrive.expect_tx", {"mbar": args[0], "tx_count": args[1]})


def _bulk_tensor_load(args: list[Any]) -> Decoded:
    """[rank, dst, mbar, map, cta_mask, cta_group, policy, has_policy, mode, mbar_is_address, multicast, *coordinates]."""
    if _text(args[8]) != "tile" or _number(args[9]) or _number(args[10]) or _number(args[5]) != 1:
        raise UnsupportedInstruction(
            "cp.async.bulk.tensor with gather4, multicast or cta_group::2 is not simulated"
        )
    return Decoded(
        "cp.async.bulk.tensor.g2s",
        {"dst": args[1], "mbar": args[2], "tensor_map": args[3], "coordinates": list(args[11:])},
    )


def _bulk_tensor_store(args: list[Any]) -> Decoded:
    """[rank, src, map, policy, has_policy, *coordinates]."""
    return Decoded(
        "cp.async.bulk.tensor.s2g",
        {"src": args[1], "tensor_map": args[2], "coordinates": list(args[5:])},
    )


def _bulk_wait(args: list[Any]) -> Decoded:
    return Decoded(
        "cp.async.bulk.wait_group",
        {"newest": _number(args[0]), "reads_only": bool(_number(args[1]))},
    )


def _fence_proxy_async(args: list[Any]) -> Decoded:
    return Decoded("fence.proxy.async", {"space": _text(args[0])})


def _constant(mnemonic: str, **operands: Any) -> Decoder:
    return lambda args: Decoded(mnemonic, dict(operands))


DECODE_0_26: dict[str, Decoder] = {
    "tirx.cuda.__shfl_sync": _operands("shfl.sync.idx", "mask", "value", "source", "width"),
    "tirx.cuda.thread_rank": _operands("thread_rank"),
    "tirx.cuda.cta_sync": _constant("bar.sync", barrier=0, count=None),
    "tirx.cuda.warp_sync": _constant("bar.warp.sync"),
    "tirx.cuda.warpgroup_sync": lambda args: Decoded(
        "bar.sync", {"barrier": args[0], "count": 128}
    ),
    "tirx.ptx.bar_sync": _operands("bar.sync", "barrier", "count"),
    "tirx.ptx.barrier_sync": _operands("barrier.sync", "barrier", "count"),
    "tirx.ptx.bar_arrive": _operands("bar.arrive", "barrier", "count"),
    "tirx.cuda.thread_fence": _constant("fence", sem="sc", scope="gpu"),
    "tirx.ptx.fence": lambda args: Decoded(
        "fence", {"sem": _text(args[0]), "scope": _text(args[1])}
    ),
    "tirx.ptx.mbarrier_arrive": _mbarrier_arrive,
    "tirx.ptx.mbarrier_arrive_expect_tx": _mbarrier_arrive_expect_tx,
    "tirx.ptx.cp_async_bulk_tensor_g2s_cluster": _bulk_tensor_load,
    "tirx.ptx.cp_async_bulk_tensor_shared_to_global": _bulk_tensor_store,
    "tirx.ptx.cp_async_bulk_commit_group": _operands("cp.async.bulk.commit_group"),
    "tirx.ptx.cp_async_bulk_wait_group": _bulk_wait,
    "tirx.ptx.prefetch_tensormap": lambda args: Decoded(
        "prefetch.tensormap", {"tensor_map": args[0]}
    ),
    "tirx.ptx.elect_sync": _operands("elect.sync"),
    "tirx.ptx.fence_mbarrier_init": _operands("fence.mbarrier_init"),
    "tirx.ptx.fence_proxy_async": _fence_proxy_async,
    "tirx.ptx.ld": _ld,
    "tirx.ptx.st": _st,
    "tirx.ptx.mbarrier_init": _operands("mbarrier.init", "mbar", "count"),
    "tirx.ptx.mbarrier_try_wait": _operands("mbarrier.try_wait.parity", "mbar", "parity"),
    "tirx.ptx.tcgen05_alloc": _cta_group("tcgen05.alloc", "dst", "n_columns"),
    "tirx.ptx.tcgen05_dealloc": _cta_group("tcgen05.dealloc", "taddr", "n_columns"),
    "tirx.ptx.tcgen05_relinquish_alloc_permit": _cta_group("tcgen05.relinquish_alloc_permit"),
    "tirx.ptx.tcgen05_encode_matrix_descriptor": _operands(
        "encode.matrix_descriptor", "dst", "addr", "leading", "stride", "swizzle"
    ),
    "tirx.ptx.tcgen05_mma": _mma,
    "tirx.ptx.tcgen05_commit": _commit,
    "tirx.ptx.tcgen05_ld": _tmem_transfer("tcgen05.ld"),
    "tirx.ptx.tcgen05_st": _tmem_transfer("tcgen05.st"),
    "tirx.ptx.tcgen05_wait_ld": _operands("tcgen05.wait::ld"),
    "tirx.ptx.tcgen05_wait_st": _operands("tcgen05.wait::st"),
    "tirx.ptx.tcgen05_fence_before_thread_sync": _operands("tcgen05.fence::before_thread_sync"),
    "tirx.ptx.tcgen05_fence_after_thread_sync": _operands("tcgen05.fence::after_thread_sync"),
}
"""TVM 0.26 intrinsic -> decoder of its argument list."""


def _convert_pair(source: str, target: str) -> Decoder:
    return lambda args: Decoded(
        "cvt.x2", {"dst": args[0], "src": args[1], "source": source, "target": target}
    )


HELPERS_0_26: dict[str, Decoder] = {
    "tvm_builtin_pointer_offset": _pointer_offset,
    "tvm_builtin_smem_desc_add_16B_offset": _operands("add.matrix_descriptor", "desc", "offset"),
    **{
        f"tvm_builtin_cast_{a}x2_{b}x2": _convert_pair(a, b)
        for a, b in (
            ("float32", "float16"), ("float16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"),
        )
    },
}  # fmt: skip
"""CUDA helper that TVM 0.26 emits as source text -> decoder of its argument list."""

from . import instructions_warpgroup  # noqa: E402, F401 - adds to the tables; it needs what stands above
