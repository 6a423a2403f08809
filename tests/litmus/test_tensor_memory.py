"""The life cycle of Tensor Memory: tcgen05.alloc, dealloc, relinquish, and which lanes and columns an access may reach."""

from tvm.script import tirx as T

from .harness import SCHEDULES, line_of, requires, run

TWO_WARPS = 64


def life(
    columns=32,
    freed=32,
    whole_warp=True,
    free=True,
    once=True,
    early_relinquish=False,
    store_column=0,
    use_after=False,
    sync=True,
):
    """One warp allocates, stores a column and frees."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        if early_relinquish:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
        if whole_warp:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=columns, cta_group=1)  # alloc
        else:
            if lane == 0:
                T.ptx.tcgen05.alloc(T.address_of(address), n_cols=columns, cta_group=1)  # by_lane
        if sync:
            T.cuda.warp_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=store_column)  # st
        T.ptx.tcgen05.wait.st()
        D[lane] = reg[0]
        if free:
            T.ptx.tcgen05.dealloc(address[0], n_cols=freed, cta_group=1)  # dealloc
        if not once:
            T.ptx.tcgen05.dealloc(address[0], n_cols=freed, cta_group=1)  # again
        if use_after:
            T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # use_after
            T.ptx.tcgen05.wait.st()

    return kernel


def finds(expected, **flags):
    """A test: silent as it stands, and these findings with the flags."""

    def test():
        for schedule in SCHEDULES:
            assert run(life, schedule).findings == []
            found = sorted((f.code, f.line) for f in run(life, schedule, **flags).findings)
            assert found == sorted((code, line_of(life, at)) for code, at in expected), schedule

    return test


BAD = "tmem-bad-allocation"
test_tcgen05_alloc_requires_a_power_of_two = finds(
    [(BAD, "alloc"), (BAD, "dealloc")], columns=48, freed=48
)
test_tcgen05_alloc_requires_32_columns = finds(
    [(BAD, "alloc"), (BAD, "dealloc")], columns=16, freed=16
)
test_tcgen05_alloc_requires_at_most_512_columns = finds(
    [(BAD, "alloc"), (BAD, "dealloc")], columns=1024, freed=1024
)
test_tcgen05_dealloc_requires_all_columns = finds([(BAD, "dealloc")], columns=64, freed=32)
test_tcgen05_alloc_requires_a_whole_warp = finds(
    [("divergent-collective", "by_lane")], whole_warp=False
)
test_tcgen05_alloc_requires_dealloc = finds([("tmem-leak", "alloc")], free=False)
test_tcgen05_dealloc_requires_a_live_allocation = finds([("tmem-double-free", "again")], once=False)
test_tcgen05_alloc_requires_the_permit = finds([(BAD, "alloc")], early_relinquish=True)
test_tcgen05_st_requires_allocated_columns = finds([("tmem-unallocated", "st")], store_column=32)
test_tcgen05_st_requires_columns_of_the_cta = finds([("out-of-bounds", "st")], store_column=512)
test_tcgen05_st_requires_columns_that_are_not_freed = finds(
    [("tmem-unallocated", "use_after")], use_after=True
)


def addresses(sync=True):
    """Warp 1 reads the address that the allocation of warp 0 writes to shared memory."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "uint32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)  # alloc
        if sync:
            T.cuda.cta_sync()
        if warp == 1:
            D[lane] = address[0]  # load
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


test_load_of_the_tmem_address_requires_cta_sync = requires(
    addresses, "sync", "race shared raw @load <alloc"
)


def growing(shrinking=True):
    """Two allocations of one CTA."""
    first, second = (64, 32) if shrinking else (32, 64)

    @T.prim_func
    def kernel(D: T.Buffer((32,), "uint32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((2,), "uint32")
        pool.commit()
        T.ptx.tcgen05.alloc(address.ptr_to([0]), n_cols=first, cta_group=1)
        T.ptx.tcgen05.alloc(address.ptr_to([1]), n_cols=second, cta_group=1)  # second
        T.cuda.warp_sync()
        D[lane] = address[0]
        T.ptx.tcgen05.dealloc(address[0], n_cols=first, cta_group=1)
        T.ptx.tcgen05.dealloc(address[1], n_cols=second, cta_group=1)

    return kernel


test_tcgen05_alloc_requires_counts_that_do_not_grow = requires(
    growing, "shrinking", "tmem-bad-allocation tmem @second"
)


def exhausted(freed=True):
    """All columns twice: the second allocation waits until the first is freed."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "uint32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((2,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx.tcgen05.alloc(address.ptr_to([0]), n_cols=512, cta_group=1)
            T.cuda.warp_sync()
            if freed:
                T.ptx.tcgen05.dealloc(address[0], n_cols=512, cta_group=1)
        T.cuda.cta_sync()
        if warp == 1:
            T.ptx.tcgen05.alloc(address.ptr_to([1]), n_cols=512, cta_group=1)  # second
            T.cuda.warp_sync()
            D[lane] = address[1]
            T.ptx.tcgen05.dealloc(address[1], n_cols=512, cta_group=1)

    return kernel


def test_tcgen05_alloc_requires_free_columns():
    assert run(exhausted).findings == []
    for schedule in SCHEDULES:
        found = [(f.code, f.line) for f in run(exhausted, schedule, freed=False).findings]
        assert ("deadlock", line_of(exhausted, "second")) in found


def other_warp(sync=True):
    """Warp 1 still loads when warp 0 frees."""

    @T.prim_func
    def kernel(D: T.Buffer((2, 32), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        T.cuda.cta_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
        T.ptx.tcgen05.wait.st()
        T.cuda.cta_sync()
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
        T.ptx.tcgen05.wait.ld()
        D[warp, lane] = reg[0]
        if sync:
            T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)  # dealloc

    return kernel


test_tcgen05_dealloc_requires_cta_sync_after_loads_of_other_warps = requires(
    other_warp, "sync", "tmem-freed-in-use tmem @dealloc <ld"
)


def rows(own=True):
    """Warp 1 of a warpgroup reaches lanes 32 to 63 only."""
    row = 32 if own else 64

    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        T.cuda.cta_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        if warp == 1:
            T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=row, col=0)  # st
            T.ptx.tcgen05.wait.st()
            D[lane] = reg[0]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


test_tcgen05_st_requires_the_lanes_of_its_warp = requires(rows, "own", "tmem-lane-access @st")
