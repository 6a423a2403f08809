"""`T.ptx` of TVM 0.26 in terms of 0.27's: a kernel that is written for the former parses under the latter.

Each function gives the call, or, for an instruction that returns a value in 0.26, a register that it has been written to
by a statement before. A TMEM buffer begins at column 0 under 0.27, whatever tcgen05.alloc wrote. What is not here is not
spelled: the error names it.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from tvm.script import tirx as T

from .spelled_copies import (
    bulk,
    bulk_store,
    bulk_wait,
    matrix_load,
    matrix_store,
    tensor_load,
    tensor_store,
    wgmma,
)
from .spelled_parts import elements, lanes, ptx, result, word

# -- memory -----------------------------------------------------------------------------------------------------------


def _ld(
    addr: Any, return_type: str, ptx_type: str, *, dst: Any = None, space: str = "global", vec: str = "", weak: bool = False
) -> Any:  # fmt: skip
    instruction = ptx("ld", "weak" if weak else "", space, vec, ptx_type)
    if dst is None:
        return result(return_type, instruction, addr)
    return instruction(*elements(dst, lanes(vec)), addr)


def _st(
    address: Any, *values: Any, src: Any = None, space: str = "shared", vec: str = "", ptx_type: str, weak: bool = False
) -> Any:  # fmt: skip
    given = values if src is None else elements(src, lanes(vec))
    return ptx("st", "weak" if weak else "", space, vec, ptx_type)(address, *given)


def _mapa(
    ptr: Any, rank: Any, space: str = "", ptx_type: str = "u64", return_type: str = "uint64"
) -> Any:
    address = T.cuda.cvta_generic_to_shared(ptr) if hasattr(ptr.ty, "element_type") else ptr
    if ptx_type == "u64":
        return result(return_type, ptx("mapa", space, "u64"), ptr, word(rank))
    return result(return_type, ptx("mapa", "shared::cluster", "u32"), word(address), word(rank))


def _map_shared_rank(ptr: Any, rank: Any) -> Any:
    return _mapa(ptr, rank)


# -- barriers ---------------------------------------------------------------------------------------------------------


def _arrive(
    bar: Any, *, count: Any = None, sem: str = "", scope: str = "", space: str | None = None, remote: Any = None,
    pred: Any = None,
) -> Any:  # fmt: skip
    operands = [] if count is None else [word(count)]
    return _arrival(("mbarrier", "arrive"), bar, operands, sem, scope, space, remote, pred)


def _arrive_expect_tx(
    bar: Any, byte_count: Any, *, sem: str = "", scope: str = "", space: str | None = None, remote: Any = None,
    pred: Any = None,
) -> Any:  # fmt: skip
    name, operands = ("mbarrier", "arrive", "expect_tx"), [word(byte_count)]
    return _arrival(name, bar, operands, sem, scope, space, remote, pred)


def _complete_tx(
    bar: Any, tx_count: Any, *, sem: str = "relaxed", scope: str = "cluster", space: str = "shared::cluster",
    remote: Any = None, pred: Any = None,
) -> Any:  # fmt: skip
    name, operands = ("mbarrier", "complete_tx"), [word(tx_count)]
    return _arrival(name, bar, operands, sem, scope, space, remote, pred)


def _arrive_no_complete(bar: Any, count: Any, *, space: str = "shared", pred: Any = None) -> Any:
    name = ("mbarrier", "arrive", "noComplete")
    return _arrival(name, bar, [word(count)], "", "", space, None, pred)


def _arrival(
    name: tuple[str, ...], bar: Any, operands: list[Any], sem: str, scope: str, space: str | None, remote: Any, pred: Any
) -> Any:  # fmt: skip
    given = {} if pred is None else {"pred": word(pred)}
    if remote is not None:
        bar, space = _mapa(bar, remote, ptx_type="u32", return_type="uint32"), "shared::cluster"
    return ptx(*name, sem, scope, space or "shared", "b64")(bar, *operands, **given)


def _commit(bar: Any, cta_group: int = 1, cta_mask: Any = 0, *, pred: Any = None) -> Any:
    given = {} if pred is None else {"pred": word(pred)}
    name = (
        "tcgen05",
        "commit",
        f"cta_group::{cta_group}",
        "mbarrier::arrive::one",
        "shared::cluster",
    )
    mask = cta_mask if isinstance(cta_mask, int) else getattr(cta_mask, "value", None)
    if isinstance(mask, int) and mask.bit_count() <= 1:
        return ptx(*name, "b64")(bar, **given)
    return ptx(*name, "multicast::cluster", "b64")(bar, word(cta_mask, "uint16"), **given)


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
    return ptx(*name)(*regs, _tmem(src_addr, row, col))


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
    return ptx(*name)(_tmem(dst_addr, row, col), *regs)


def _tcgen05_cp(
    taddr: Any, src_desc: Any, *, shape: str, cta_group: int = 1, multicast: str = "", decompress: str = "", row: Any = 0,
    col: Any = 0,
) -> Any:  # fmt: skip
    name = ("tcgen05", "cp", f"cta_group::{cta_group}", shape, multicast, decompress)
    return ptx(*name)(_tmem(taddr, row, col), src_desc)


def _grouped(action: str, *tokens: str) -> Any:
    """tcgen05.alloc and its like: operands, then cta_group."""

    def call(address: Any = None, n_cols: Any = None, cta_group: int = 1) -> Any:
        operands = [] if address is None else [address, word(n_cols)]
        return ptx("tcgen05", action, f"cta_group::{cta_group}", "sync", "aligned", *tokens)(
            *operands
        )

    return call


def _relinquish(cta_group: int = 1) -> Any:
    return _grouped("relinquish_alloc_permit")(cta_group=cta_group)


def _fixed(*tokens: str) -> Any:
    return lambda: ptx(*tokens)()


def _numbers(*tokens: str) -> Any:
    return lambda *numbers: ptx(*tokens)(*map(word, numbers))


def _cluster_arrive(sem: str = "", aligned: bool = True) -> Any:
    return ptx("barrier", "cluster", "arrive", sem, "aligned" if aligned else "")()


def _cluster_wait(acquire: bool = False, aligned: bool = True) -> Any:
    tokens = ("acquire" if acquire else "", "aligned" if aligned else "")
    return ptx("barrier", "cluster", "wait", *tokens)()


class _Fence:
    """T.ptx.fence(sem, scope), and its kinds."""

    proxy_async = staticmethod(lambda space="": ptx("fence", "proxy", "async", space)())
    mbarrier_init = staticmethod(_fixed("fence", "mbarrier_init", "release", "cluster"))

    def __call__(self, sem: str, scope: str) -> Any:
        return ptx("fence", sem, scope)()


_TENSOR = SimpleNamespace(g2s_cluster=tensor_load, s2g=tensor_store)
_ALLOC = ("shared::cta", "b32")

PTX = SimpleNamespace(
    ld=_ld,
    st=_st,
    mapa=_mapa,
    map_shared_rank=_map_shared_rank,
    elect_sync=lambda: T.cuda.elect_sync() != T.uint32(0),
    fetch_register=lambda bits, name: T.cuda.mov_sreg(bits, name),
    setmaxnreg=lambda inc, count: ptx("setmaxnreg", "inc" if inc else "dec", "sync.aligned.u32")(
        count
    ),
    ldmatrix=matrix_load,
    stmatrix=matrix_store,
    cp_async_bulk_g2s_cta=bulk("shared::cta", "global"),
    cp_async_bulk_g2s_cluster=bulk("shared::cluster", "global"),
    cp_async_bulk_s2s_cluster=bulk("shared::cluster", "shared::cta"),
    cp_async_bulk_s2g=bulk_store,
    cp_async=SimpleNamespace(
        bulk=SimpleNamespace(
            commit_group=_fixed("cp", "async", "bulk", "commit_group"),
            wait_group=bulk_wait,
            tensor=_TENSOR,
        ),
    ),
    mbarrier=SimpleNamespace(
        init=lambda bar, count: ptx("mbarrier.init.shared.b64")(bar, word(count)),
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
        wait_group=lambda n: ptx("wgmma", "wait_group", "sync", "aligned")(n),
        encode_matrix_descriptor=T.cuda.wgmma.encode_matrix_descriptor,
        mma_async=SimpleNamespace(ss=wgmma),
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
