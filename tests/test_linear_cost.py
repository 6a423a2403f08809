"""What a run costs grows with the number of accesses and not with its square: counted in calls, not in seconds.

Warps stay together under lazy and run apart under a random schedule; under lazy all operations are in flight at once.
"""

import sys

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import lower, simulate

SIZES = (24, 48, 96)
SQUARE, LINE = 4, 2
"""How often the second difference of costs holds the first, as the number of accesses is doubled twice."""


def shared_reads(n):
    """Every warp reads the same word, and a word of its lane, n times; then all is overwritten, unordered."""

    @T.prim_func
    def kernel(A: T.Buffer((1,), "float32"), D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        s = T.alloc_shared([33], "float32")
        s[lane] = T.float32(1)
        T.cuda.cta_sync()
        for _i in T.serial(n):
            D[warp * 32 + lane] = s[32 - 1] + s[lane]
        s[lane] = T.float32(2)

    return kernel


def global_reads(n):
    """Every warp reads a word that has been written, and each lane another one, n times."""

    @T.prim_func
    def kernel(A: T.Buffer((64,), "float32"), D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        r = T.alloc_local((2,), "float32")
        if warp == 0:
            A[lane] = T.float32(1)
        T.cuda.cta_sync()
        for _i in T.serial(n):
            T.ptx.ld(A.ptr_to([0]), "float32", "b32", dst=r.ptr_to([0]), space="global")
            T.ptx.ld(A.ptr_to([lane]), "float32", "b32", dst=r.ptr_to([1]), space="global")
        D[warp * 32 + lane] = r[0] + r[1]

    return kernel


def places_apart(n):
    """Every warp reads n words, one after the other, which have been written one by one."""

    @T.prim_func
    def kernel(A: T.Buffer((128,), "float32"), D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        r = T.alloc_local((1,), "float32")
        s = T.alloc_shared([128], "float32")
        s[warp * 32 + lane] = T.float32(1)
        T.cuda.cta_sync()
        r[0] = T.float32(0)
        for i in T.serial(n):
            r[0] = r[0] + s[i]
        T.cuda.cta_sync()
        if warp == 0:
            for i in T.serial(n):
                s[i] = T.float32(2)
        D[warp * 32 + lane] = r[0]

    return kernel


def tensor_memory(n):
    """Every warp stores n columns, loads them again, one by one, and waits once."""

    @T.prim_func
    def kernel(A: T.Buffer((1,), "float32"), D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        r = T.alloc_local((n,), "float32")
        other = T.alloc_local((n,), "float32")
        address = T.alloc_shared([1], "uint32")
        if warp == 0:
            T.ptx.tcgen05.alloc(T.address_of(address[0]), n_cols=128, cta_group=1)
        T.cuda.cta_sync()
        for i in range(n):
            r[i] = T.float32(1)
            other[i] = T.float32(1)
        for i in range(n):
            T.ptx.tcgen05.st(address[0], r[i], shape="32x32b", num=1, row=warp * 32, col=i)
        T.ptx.tcgen05.wait.st()
        for i in range(n):
            T.ptx.tcgen05.ld(address[0], r[i], shape="32x32b", num=1, row=warp * 32, col=i)
            D[warp * 32 + lane] = other[i]
        T.ptx.tcgen05.wait.ld()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=128, cta_group=1)

    return kernel


def registers(n):
    """Every lane writes and reads n elements of a local array by an index of its own."""

    @T.prim_func
    def kernel(A: T.Buffer((1,), "float32"), D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        r = T.alloc_local((128,), "float32")
        for i in T.serial(n):
            r[(lane + i) % 128] = T.float32(1)
            D[warp * 32 + lane] = r[(lane + i) % 128]

    return kernel


def loads_in_flight(n):
    """One thread starts n bulk copies that one barrier counts, and all wait for it."""

    @T.prim_func
    def kernel(A: T.Buffer((384,), "float32"), D: T.Buffer((128,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((384,), "float32", align=16)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), 16 * n)
                for i in T.serial(n):
                    T.ptx.cp_async_bulk_g2s_cta(
                        s.ptr_to([i * 4]), A.ptr_to([i * 4]), 16, bar.ptr_to([0])
                    )
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = s[lane % 4]

    return kernel


def bulk_stores(n, newest=0):
    """One thread makes n bulk stores of one source, a group each, and waits for each, or for all but the newest."""

    @T.prim_func
    def kernel(A: T.Buffer((1,), "float32"), D: T.Buffer((384,), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((4,), "float32", align=16)
        pool.commit()
        if warp == 0:
            if lane < 4:
                s[lane] = T.float32(1)
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                for i in T.serial(n):
                    T.ptx.cp_async_bulk_s2g(D.ptr_to([i * 4]), s.ptr_to([0]), 16)
                    T.ptx.cp_async.bulk.commit_group()
                    T.ptx.cp_async.bulk.wait_group(newest)
                T.ptx.cp_async.bulk.wait_group(0)

    return kernel


def calls(kernel, schedule):
    """Calls of Python functions and of functions in C while a kernel runs."""
    lowered = lower(kernel)
    arrays = [np.ones(shape, dtype) for _, dtype, shape in lowered.parameters]
    simulate(lowered, arrays, schedule)  # translates it
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        simulate(lowered, arrays, schedule)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("schedule", ["lazy", "random:1"])
@pytest.mark.parametrize(
    "factory",
    [shared_reads, global_reads, places_apart, tensor_memory, registers, loads_in_flight, bulk_stores],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_cost_is_linear_in_the_accesses(factory, schedule):
    few, more, most = (calls(factory(n), schedule) for n in SIZES)
    growth = (most - more) / (more - few)
    assert growth < LINE + (SQUARE - LINE) / 6, (few, more, most)
