"""Plain loads through a pointer that TVM declares `__restrict__`, of what others write: what nvcc makes of them.

TVM declares every pointer parameter so, and nvcc believes it: until the pointer goes into an instruction (which is inline
assembly), the memory behind it changes by this thread's plain stores only. What nvcc 13.0.88 made of each kernel stands
beside its test: the loads, barriers and waits of its PTX, in their order, where "nc" is an ld.global.nc.
"""

import re
import subprocess

import pytest
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip.frontend.tirx.lowering import cuda_source
from phaseflip.gpu.nvcc import find_nvcc
from phaseflip.spelling import T
from tests.test_build import needs_nvcc

from .harness import gives, requires

N = 64
ROWS, COLUMNS = 32, 8
PLAIN = TileLayout(S[(ROWS, COLUMNS) : (COLUMNS, 1)])


# -- written by a bulk store ------------------------------------------------------------------------------------------------
def loads_twice(by_ld=True, early=True, given="", stores=""):
    """A thread loads an element (if `early`), a bulk store overwrites it, and the thread loads it again.

    `given`: the pointer goes into an instruction "before" the second load or "after" it. `stores`: there is a plain store
    of the thread through it, to the "same" element or to "another".
    """

    @T.prim_func
    def kernel(C: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((4,), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        found = T.alloc_local((1,), "float16")
        for c in T.serial(COLUMNS):
            s[lane, c] = T.float16(1)
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if lane == 0:
            if early:
                D[0] = C[0, 0]
            if given == "before":
                T.ptx.ld(C.ptr_to([1, 0]), "uint16", "b16", dst=found.ptr_to([0]))
                D[1] = found[0]
            if stores == "same":
                C[0, 0] = T.float16(3)
            T.ptx.fence.proxy_async("global")
            Tx.copy_async(C[:, :], s[:, :], dispatch="tma_auto")  # store
            T.ptx.cp_async.bulk.commit_group()
            T.ptx.cp_async.bulk.wait_group(0, False)
            if by_ld:
                T.ptx.ld(C.ptr_to([0, 0]), "uint16", "b16", dst=found.ptr_to([0]))
                D[2] = found[0]
            else:
                D[2] = C[0, 0]  # load
            if stores == "another":
                C[0, 1] = T.float16(3)
            if given == "after":
                T.ptx.ld(C.ptr_to([1, 0]), "uint16", "b16", dst=found.ptr_to([0]))
                D[3] = found[0]

    return kernel


READ_ONLY = "race global raw @load <store"
RESTRICT = "~race global raw @load <store"
test_load_of_what_a_bulk_store_wrote_requires_ld = requires(  # nc wait | ld wait ld
    loads_twice, "by_ld", READ_ONLY
)
test_first_load_of_what_a_bulk_store_wrote_requires_ld = requires(  # wait nc | wait ld
    loads_twice, "by_ld", READ_ONLY, early=False
)
test_a_plain_store_elsewhere_does_not_replace_ld = requires(  # ld wait | ld wait ld
    loads_twice, "by_ld", RESTRICT, stores="another"
)
test_a_plain_store_to_the_element_does_not_replace_ld = requires(  # wait, no load | wait ld
    loads_twice, "by_ld", RESTRICT, stores="same", early=False
)
test_pointer_given_to_an_instruction_before_is_enough = gives(  # ld ld wait ld
    loads_twice, by_ld=False, given="before"
)
test_pointer_given_to_an_instruction_after_does_not_replace_ld = (
    requires(  # ld wait ld | ld wait ld ld
        loads_twice, "by_ld", RESTRICT, given="after"
    )
)


def peer_loads(by_ld=True):
    """One CTA of a cluster stores, and the other one loads after a barrier."""

    @T.prim_func
    def kernel(C: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((2,), "float16")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        found = T.alloc_local((1,), "float16")
        for c in T.serial(COLUMNS):
            s[lane, c] = T.float16(1)
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if rank == 0:
            if lane == 0:
                Tx.copy_async(C[:, :], s[:, :], dispatch="tma_auto")  # store
                T.ptx.cp_async.bulk.commit_group()
                T.ptx.cp_async.bulk.wait_group(0, False)
        T.cuda.cluster_sync()
        if rank == 1:
            if by_ld:
                T.ptx.ld(C.ptr_to([lane, 0]), "uint16", "b16", dst=found.ptr_to([0]))
                D[0] = found[0]
            else:
                D[0] = C[lane, 0]  # load

    return kernel


test_load_of_what_another_cta_stored_requires_ld = requires(  # wait nc | wait ld
    peer_loads, "by_ld", READ_ONLY
)


# -- written by threads -----------------------------------------------------------------------------------------------------
def handed_over(by_ld=True, given=""):
    """One thread stores an element, the others load it after a barrier.

    `given`: some threads give the pointer to an instruction "before", or "apart", where the others load.
    """

    @T.prim_func
    def kernel(C: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        if given == "before":
            if tid < 3:
                D[tid] = T.ptx.ld(C.ptr_to([tid]), "int32", "s32")
        if tid == 0:
            C[5] = 9  # store
        T.cuda.cta_sync()
        if by_ld:
            D[tid] = T.ptx.ld(C.ptr_to([5]), "int32", "s32")
        else:
            if given == "apart":
                if tid < 32:
                    D[tid] = T.ptx.ld(C.ptr_to([5]), "int32", "s32")
                else:
                    D[tid] = C[5]  # apart
            else:
                D[tid] = C[5]  # load

    return kernel


test_load_of_what_another_thread_stored_requires_ld = requires(  # ld bar | bar ld
    handed_over, "by_ld", RESTRICT
)
test_pointer_given_to_an_instruction_by_some_threads_before_is_enough = gives(  # ld bar ld
    handed_over, by_ld=False, given="before"
)
# nvcc did load anew here (bar ld ld), but nothing that an instruction may have done with the pointer leads to this load.
test_pointer_given_to_an_instruction_in_the_other_branch_does_not_replace_ld = gives(
    handed_over, "~race global raw @apart <store", by_ld=False, given="apart"
)


def rounds(by_ld=True):
    """In each round one thread stores an element, and the others load it before they give the pointer to an instruction."""

    @T.prim_func
    def kernel(C: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        D[tid] = C[5]
        for i in T.serial(3):
            T.cuda.cta_sync()
            if tid == 0:
                C[5] = i  # store
            T.cuda.cta_sync()
            if by_ld:
                D[tid] = D[tid] + T.ptx.ld(C.ptr_to([5]), "int32", "s32")
            else:
                D[tid] = D[tid] + C[5]  # load
            D[tid] = D[tid] + T.ptx.ld(C.ptr_to([0]), "int32", "s32")

    return kernel


test_load_in_the_first_round_requires_ld = (
    requires(  # the rounds unrolled; in the first no load | ld
        rounds, "by_ld", RESTRICT
    )
)


def overwritten(by_ld=True, others=True):
    """Each thread stores an element, some are overwritten by other threads, and each loads its own again."""

    @T.prim_func
    def kernel(C: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        C[tid] = 7
        T.cuda.cta_sync()
        if others:
            if tid < 5:
                C[tid + 1] = tid  # store
        T.cuda.cta_sync()
        if by_ld:
            D[tid] = T.ptx.ld(C.ptr_to([tid]), "int32", "s32")
        else:
            D[tid] = C[tid]  # load

    return kernel


test_load_of_an_element_that_others_overwrote_requires_ld = (
    requires(  # bar bar, no load | bar bar ld
        overwritten, "by_ld", RESTRICT
    )
)
test_a_thread_loads_what_it_stored_itself = gives(  # bar bar, no load: the 7 that it stored
    overwritten, by_ld=False, others=False
)


# -- what nvcc makes of them ------------------------------------------------------------------------------------------------
@needs_nvcc
@pytest.mark.parametrize(
    ("factory", "flags", "order"),
    [
        (loads_twice, {"by_ld": False}, "nc wait"),
        (loads_twice, {}, "ld wait ld"),
        (loads_twice, {"by_ld": False, "early": False}, "wait nc"),
        (loads_twice, {"early": False}, "wait ld"),
        (loads_twice, {"by_ld": False, "stores": "another"}, "ld wait"),
        (loads_twice, {"by_ld": False, "stores": "same", "early": False}, "wait"),
        (loads_twice, {"by_ld": False, "given": "before"}, "ld ld wait ld"),
        (loads_twice, {"by_ld": False, "given": "after"}, "ld wait ld"),
        (loads_twice, {"given": "after"}, "ld wait ld ld"),
        (peer_loads, {"by_ld": False}, "wait nc"),
        (peer_loads, {}, "wait ld"),
        (handed_over, {"by_ld": False}, "ld bar"),
        (handed_over, {}, "bar ld"),
        (handed_over, {"by_ld": False, "given": "before"}, "ld bar ld"),
        (rounds, {"by_ld": False}, "ld bar bar ld" + 2 * " bar bar ld ld"),
        (rounds, {}, "ld" + 3 * " bar bar ld ld"),
        (overwritten, {"by_ld": False}, "bar bar"),
        (overwritten, {}, "bar bar ld"),
    ],
)
def test_what_nvcc_makes_of_loads(factory, flags, order, tmp_path):
    (tmp_path / "kernel.cu").write_text(cuda_source(factory(**flags), "sm_90a"))
    words = "-ptx -std=c++17 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=compute_90a -w"
    subprocess.run(
        [find_nvcc(), *words.split(), "kernel.cu", "-o", "kernel.ptx"], cwd=tmp_path, check=True
    )
    names = {
        "ld.global.nc": "nc",
        "ld.global": "ld",
        "bar.sync": "bar",
        "cp.async.bulk.wait": "wait",
    }
    if factory in (loads_twice, peer_loads):
        del names["bar.sync"]  # the one before all loads
    text = (tmp_path / "kernel.ptx").read_text()
    met = re.findall("|".join(map(re.escape, names)), text)
    assert [names[m] for m in met] == order.split()
