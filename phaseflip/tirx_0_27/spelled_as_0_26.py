"""`T.ptx` of TVM 0.26 in terms of 0.27's: a kernel that is written for the former parses under the latter.

Each function gives the call, or, for an instruction that returns a value in 0.26, a register that it has been written to
by a statement before. A TMEM buffer begins at column 0 under 0.27, whatever tcgen05.alloc wrote. What is not here is not
spelled: the error names it.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from tvm.script import tirx as T
from tvm.tirx import BufferLoad, IntImm


def _word(value: Any, dtype: str = "uint32") -> Any:
    """An operand of that type."""
    if isinstance(value, int):
        return IntImm(dtype, value)
    return value if str(value.ty.dtype) == dtype else T.Cast(dtype, value)


def _ptx(*tokens: str) -> Any:
    """The instruction of these parts; empty ones are left out."""
    return T.ptx[".".join(filter(None, tokens))]


def _result(dtype: str, instruction: Any, *operands: Any) -> Any:
    """A new register, after a statement that writes the instruction's result to it."""
    register = T.alloc_local([1], dtype)
    T.evaluate(instruction(register[0], *operands))
    return register[0]


def _elements(pointer: Any, count: int) -> list[Any]:
    """The registers from the one that a pointer is of."""
    load = pointer.args[0]
    *rows, last = load.indices
    return [BufferLoad(load.source, [*rows, last + i if i else last]) for i in range(count)]


def _lanes(vec: str) -> int:
    return int(vec.removeprefix("v") or 1)


# -- memory -----------------------------------------------------------------------------------------------------------


def _ld(
    addr: Any, return_type: str, ptx_type: str, *, dst: Any = None, space: str = "global", vec: str = "", weak: bool = False
) -> Any:  # fmt: skip
    instruction = _ptx("ld", "weak" if weak else "", space, vec, ptx_type)
    if dst is None:
        return _result(return_type, instruction, addr)
    return instruction(*_elements(dst, _lanes(vec)), addr)


def _st(
    address: Any, *values: Any, src: Any = None, space: str = "shared", vec: str = "", ptx_type: str, weak: bool = False
) -> Any:  # fmt: skip
    given = values if src is None else _elements(src, _lanes(vec))
    return _ptx("st", "weak" if weak else "", space, vec, ptx_type)(address, *given)


def _mapa(
    ptr: Any, rank: Any, space: str = "", ptx_type: str = "u64", return_type: str = "uint64"
) -> Any:
    address = T.cuda.cvta_generic_to_shared(ptr) if hasattr(ptr.ty, "element_type") else ptr
    if ptx_type == "u64":
        return _result(return_type, _ptx("mapa", space, "u64"), ptr, _word(rank))
    return _result(return_type, _ptx("mapa", "shared::cluster", "u32"), _word(address), _word(rank))


def _map_shared_rank(ptr: Any, rank: Any) -> Any:
    return _mapa(ptr, rank)


# -- barriers ---------------------------------------------------------------------------------------------------------


def _arrive(
    bar: Any, *, count: Any = None, sem: str = "", scope: str = "", space: str | None = None, remote: Any = None,
    pred: Any = None,
) -> Any:  # fmt: skip
    operands = [] if count is None else [_word(count)]
    return _arrival(("mbarrier", "arrive"), bar, operands, sem, scope, space, remote, pred)


def _arrive_expect_tx(
    bar: Any, byte_count: Any, *, sem: str = "", scope: str = "", space: str | None = None, remote: Any = None,
    pred: Any = None,
) -> Any:  # fmt: skip
    name, operands = ("mbarrier", "arrive", "expect_tx"), [_word(byte_count)]
    return _arrival(name, bar, operands, sem, scope, space, remote, pred)


def _complete_tx(
    bar: Any, tx_count: Any, *, sem: str = "relaxed", scope: str = "cluster", space: str = "shared::cluster",
    remote: Any = None, pred: Any = None,
) -> Any:  # fmt: skip
    name, operands = ("mbarrier", "complete_tx"), [_word(tx_count)]
    return _arrival(name, bar, operands, sem, scope, space, remote, pred)


def _arrive_no_complete(bar: Any, count: Any, *, space: str = "shared", pred: Any = None) -> Any:
    name = ("mbarrier", "arrive", "noComplete")
    return _arrival(name, bar, [_word(count)], "", "", space, None, pred)


def _arrival(
    name: tuple[str, ...], bar: Any, operands: list[Any], sem: str, scope: str, space: str | None, remote: Any, pred: Any
) -> Any:  # fmt: skip
    given = {} if pred is None else {"pred": _word(pred)}
    if remote is not None:
        bar, space = _mapa(bar, remote, ptx_type="u32", return_type="uint32"), "shared::cluster"
    return _ptx(*name, sem, scope, space or "shared", "b64")(bar, *operands, **given)


def _commit(bar: Any, cta_group: int = 1, cta_mask: Any = 0, *, pred: Any = None) -> Any:
    given = {} if pred is None else {"pred": _word(pred)}
    name = (
        "tcgen05",
        "commit",
        f"cta_group::{cta_group}",
        "mbarrier::arrive::one",
        "shared::cluster",
    )
    mask = cta_mask if isinstance(cta_mask, int) else getattr(cta_mask, "value", None)
    if isinstance(mask, int) and mask.bit_count() <= 1:
        return _ptx(*name, "b64")(bar, **given)
    return _ptx(*name, "multicast::cluster", "b64")(bar, _word(cta_mask, "uint16"), **given)


# -- tensor memory ----------------------------------------------------------------------------------------------------


def _tmem(address: Any, row: Any, col: Any) -> Any:
    if all(isinstance(e, int) and e == 0 for e in (row, col)):
        return address
    return T.cuda.get_tmem_addr(address, row, col)


def _tcgen05_ld(
    src_addr: Any, *regs: Any, shape: str, num: int, row: Any = 0, col: Any = 0, pack: bool = False
) -> Any:
    name = (
        "tcgen05",
        "ld",
        "sync",
        "aligned",
        shape,
        f"x{num}",
        "pack::16b" if pack else "",
        "b32",
    )
    return _ptx(*name)(*regs, _tmem(src_addr, row, col))


def _tcgen05_st(
    dst_addr: Any,
    *regs: Any,
    shape: str,
    num: int,
    row: Any = 0,
    col: Any = 0,
    unpack: bool = False,
) -> Any:
    name = (
        "tcgen05",
        "st",
        "sync",
        "aligned",
        shape,
        f"x{num}",
        "unpack::16b" if unpack else "",
        "b32",
    )
    return _ptx(*name)(_tmem(dst_addr, row, col), *regs)


def _tcgen05_cp(
    taddr: Any, src_desc: Any, *, shape: str, cta_group: int = 1, multicast: str = "", decompress: str = "", row: Any = 0,
    col: Any = 0,
) -> Any:  # fmt: skip
    name = ("tcgen05", "cp", f"cta_group::{cta_group}", shape, multicast, decompress)
    return _ptx(*name)(_tmem(taddr, row, col), src_desc)


def _grouped(action: str, *tokens: str) -> Any:
    """tcgen05.alloc and its like: operands, then cta_group."""

    def call(address: Any = None, n_cols: Any = None, cta_group: int = 1) -> Any:
        operands = [] if address is None else [address, _word(n_cols)]
        return _ptx("tcgen05", action, f"cta_group::{cta_group}", "sync", "aligned", *tokens)(
            *operands
        )

    return call


def _relinquish(cta_group: int = 1) -> Any:
    return _grouped("relinquish_alloc_permit")(cta_group=cta_group)


# -- copies -----------------------------------------------------------------------------------------------------------

_ON_MBARRIER = "mbarrier::complete_tx::bytes"


def _bulk(dst: str, src: str) -> Any:
    def call(
        dst_ptr: Any, src_ptr: Any, num_bytes: Any, mbarrier_ptr: Any, *, multicast: bool = False, cta_mask: Any = 0
    ) -> Any:  # fmt: skip
        name = (
            "cp",
            "async",
            "bulk",
            dst,
            src,
            _ON_MBARRIER,
            "multicast::cluster" if multicast else "",
        )
        mask = [_word(cta_mask, "uint16")] if multicast else []
        return _ptx(*name)(dst_ptr, src_ptr, _word(num_bytes), mbarrier_ptr, *mask)

    return call


def _bulk_store(dst_ptr: Any, src_ptr: Any, num_bytes: Any) -> Any:
    return _ptx("cp", "async", "bulk", "global", "shared::cta", "bulk_group")(
        dst_ptr, src_ptr, _word(num_bytes)
    )


def _tensor_load(
    dim: int, dst_ptr: Any, mbar: Any, tensormap_addr: Any, cta_mask: Any, cta_group: int, cache_hint: str, *coords: Any,
    multicast: bool | None = None,
) -> Any:  # fmt: skip
    if multicast is None:
        multicast = not (isinstance(cta_mask, int) and cta_mask.bit_count() <= 1)
    name = ("cp", "async", "bulk", "tensor", f"{dim}d", "shared::cluster", "global", _ON_MBARRIER)
    mask = [_word(cta_mask, "uint16")] if multicast else []
    tokens = (
        "multicast::cluster" if multicast else "",
        f"cta_group::{cta_group}" if cta_group == 2 else "",
    )
    given = [_word(c, "int32") for c in coords]
    return _ptx(*name, *tokens)(dst_ptr, tensormap_addr, *given, mbar, *mask)


def _tensor_store(
    dim: int, src_ptr: Any, tensormap_addr: Any, cache_hint: str, *coords: Any
) -> Any:
    name = (
        "cp",
        "async",
        "bulk",
        "tensor",
        f"{dim}d",
        "global",
        "shared::cta",
        "tile",
        "bulk_group",
    )
    return _ptx(*name)(tensormap_addr, *[_word(c, "int32") for c in coords], src_ptr)


def _bulk_wait(n: int = 0, read: bool = True) -> Any:
    return _ptx("cp", "async", "bulk", "wait_group", "read" if read else "")(n)


# -- Hopper -----------------------------------------------------------------------------------------------------------


def _wgmma(
    descA: Any, descB: Any, *accums: Any, M: int, N: int, K: int, in_dtype: str, out_dtype: str, transA: bool, transB: bool,
    scaleA: float, scaleB: float, scaleD: Any,
) -> Any:  # fmt: skip
    kinds = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
    types = (kinds[out_dtype], kinds[in_dtype], kinds[in_dtype])
    flags = (int(scaleA), int(scaleB), int(transA), int(transB))
    name = ("wgmma", "mma_async", "sync", "aligned", f"m{M}n{N}k{K}")
    return _ptx(*name, *types)(*accums, descA, descB, T.ptx.pred(scaleD), *flags)


def _matrix_load(trans: bool, num: int, dtype: str, smem_ptr: Any, *handles: Any) -> Any:
    name = ("ldmatrix", "sync", "aligned", "m8n8", f"x{num}", "trans" if trans else "", "shared")
    return _ptx(*name, dtype.lstrip("."))(*[_elements(h, 1)[0] for h in handles], smem_ptr)


def _matrix_store(
    trans: bool, num: int, dtype: str, smem_ptr: Any, *handles: Any, shape: str = "m8n8", space: str = "shared"
) -> Any:  # fmt: skip
    name = ("stmatrix", "sync", "aligned", shape, f"x{num}", "trans" if trans else "", space)
    return _ptx(*name, dtype.lstrip("."))(smem_ptr, *[_elements(h, 1)[0] for h in handles])


def _fixed(*tokens: str) -> Any:
    return lambda: _ptx(*tokens)()


def _numbers(*tokens: str) -> Any:
    return lambda *numbers: _ptx(*tokens)(*map(_word, numbers))


def _cluster_arrive(sem: str = "", aligned: bool = True) -> Any:
    return _ptx("barrier", "cluster", "arrive", sem, "aligned" if aligned else "")()


def _cluster_wait(acquire: bool = False, aligned: bool = True) -> Any:
    tokens = ("acquire" if acquire else "", "aligned" if aligned else "")
    return _ptx("barrier", "cluster", "wait", *tokens)()


class _Fence:
    """T.ptx.fence(sem, scope), and its kinds."""

    proxy_async = staticmethod(lambda space="": _ptx("fence", "proxy", "async", space)())
    mbarrier_init = staticmethod(_fixed("fence", "mbarrier_init", "release", "cluster"))

    def __call__(self, sem: str, scope: str) -> Any:
        return _ptx("fence", sem, scope)()


_TENSOR = SimpleNamespace(g2s_cluster=_tensor_load, s2g=_tensor_store)
_ALLOC = ("shared::cta", "b32")

PTX = SimpleNamespace(
    ld=_ld,
    st=_st,
    mapa=_mapa,
    map_shared_rank=_map_shared_rank,
    elect_sync=lambda: T.cuda.elect_sync() != T.uint32(0),
    fetch_register=lambda bits, name: T.cuda.mov_sreg(bits, name),
    setmaxnreg=lambda inc, count: _ptx("setmaxnreg", "inc" if inc else "dec", "sync.aligned.u32")(
        count
    ),
    ldmatrix=_matrix_load,
    stmatrix=_matrix_store,
    cp_async_bulk_g2s_cta=_bulk("shared::cta", "global"),
    cp_async_bulk_g2s_cluster=_bulk("shared::cluster", "global"),
    cp_async_bulk_s2s_cluster=_bulk("shared::cluster", "shared::cta"),
    cp_async_bulk_s2g=_bulk_store,
    cp_async=SimpleNamespace(
        bulk=SimpleNamespace(
            commit_group=_fixed("cp", "async", "bulk", "commit_group"),
            wait_group=_bulk_wait,
            tensor=_TENSOR,
        ),
    ),
    mbarrier=SimpleNamespace(
        init=lambda bar, count: _ptx("mbarrier.init.shared.b64")(bar, _word(count)),
        arrive=_arrive,
        complete_tx=_complete_tx,
        try_wait=lambda bar, phase: T.cuda.mbarrier_wait(bar, phase),
        try_wait_acquire_cluster=lambda bar, phase: T.cuda.mbarrier_wait_acquire_cluster(
            bar, phase
        ),
    ),
    bar=SimpleNamespace(sync=_numbers("bar", "sync"), arrive=_numbers("bar", "arrive")),
    barrier=SimpleNamespace(
        sync=_numbers("barrier", "sync"),
        cluster=SimpleNamespace(arrive=_cluster_arrive, wait=_cluster_wait),
    ),
    fence=_Fence(),
    griddepcontrol=SimpleNamespace(
        wait=_fixed("griddepcontrol", "wait"),
        launch_dependents=_fixed("griddepcontrol", "launch_dependents"),
    ),
    tcgen05=SimpleNamespace(
        alloc=_grouped("alloc", *_ALLOC),
        dealloc=_grouped("dealloc", "b32"),
        relinquish_alloc_permit=_relinquish,
        commit=_commit,
        ld=_tcgen05_ld,
        st=_tcgen05_st,
        cp=_tcgen05_cp,
        encode_matrix_descriptor=T.cuda.tcgen05.encode_matrix_descriptor,
        encode_instr_descriptor=T.cuda.tcgen05.encode_instr_descriptor,
        wait=SimpleNamespace(
            ld=_fixed("tcgen05", "wait::ld", "sync", "aligned"),
            st=_fixed("tcgen05", "wait::st", "sync", "aligned"),
        ),
        fence=SimpleNamespace(
            before_thread_sync=_fixed("tcgen05", "fence::before_thread_sync"),
            after_thread_sync=_fixed("tcgen05", "fence::after_thread_sync"),
        ),
    ),
    wgmma=SimpleNamespace(
        fence=_fixed("wgmma", "fence", "sync", "aligned"),
        commit_group=_fixed("wgmma", "commit_group", "sync", "aligned"),
        wait_group=lambda n: _ptx("wgmma", "wait_group", "sync", "aligned")(n),
        encode_matrix_descriptor=T.cuda.wgmma.encode_matrix_descriptor,
        mma_async=SimpleNamespace(ss=_wgmma),
    ),
)
"""T.ptx as 0.26 has it."""


class _Arrive:
    """T.ptx.mbarrier.arrive(...), and its kinds."""

    expect_tx = staticmethod(_arrive_expect_tx)
    no_complete = staticmethod(_arrive_no_complete)
    __call__ = staticmethod(_arrive)


PTX.mbarrier.arrive = _Arrive()


class SpelledAs026(ModuleType):
    """`tvm.script.tirx` with 0.26's T.ptx."""

    ptx = PTX

    def __getattr__(self, name: str) -> Any:
        return getattr(T, name)

    @staticmethod
    def decl_buffer(*args: Any, **given: Any) -> Any:
        """A TMEM buffer is given its first column, not the address that tcgen05.alloc wrote."""
        if "allocated_addr" in given:
            given["allocated_addr"] = 0
        return T.decl_buffer(*args, **given)
