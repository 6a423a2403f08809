"""The life cycle of Tensor Memory: tcgen05.alloc, dealloc, relinquish, and which lanes and columns an access may reach."""

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run

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


test_tensor_memory_that_is_allocated_used_and_freed_is_silent = gives(life)

BAD = "tmem-bad-allocation tmem"
test_tcgen05_alloc_requires_a_power_of_two = gives(
    life, f"{BAD} @alloc", f"{BAD} @dealloc", columns=48, freed=48
)
test_tcgen05_alloc_requires_32_columns = gives(
    life, f"{BAD} @alloc", f"{BAD} @dealloc", columns=16, freed=16
)
test_tcgen05_alloc_requires_at_most_512_columns = gives(
    life, f"{BAD} @alloc", f"{BAD} @dealloc", columns=1024, freed=1024
)
test_tcgen05_dealloc_requires_all_columns = gives(life, f"{BAD} @dealloc", columns=64, freed=32)
test_tcgen05_alloc_requires_a_whole_warp = requires(
    life, "whole_warp", "divergent-collective tmem @by_lane"
)
test_tcgen05_alloc_requires_dealloc = requires(life, "free", "tmem-leak tmem @alloc")
test_tcgen05_dealloc_requires_a_live_allocation = requires(
    life, "once", "tmem-double-free tmem @again"
)
test_tcgen05_alloc_requires_the_permit = gives(life, f"{BAD} @alloc", early_relinquish=True)
test_tcgen05_st_requires_allocated_columns = gives(
    life, "tmem-unallocated tmem @st", store_column=32
)
test_tcgen05_st_requires_columns_of_the_cta = gives(life, "out-of-bounds @st", store_column=512)
test_tcgen05_st_requires_columns_that_are_not_freed = gives(
    life, "tmem-unallocated tmem @use_after <dealloc", use_after=True
)


def one_lane(wait_ld=True, wait_st=True, relinquish=True):
    """Collectives of a warp, each executed by all of its lanes or by one."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        if relinquish:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
        else:
            if lane == 0:
                T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)  # relinquish
        T.cuda.warp_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # st
        reg[0] = T.float32(2)
        if wait_st:
            T.ptx.tcgen05.wait.st()
        else:
            if lane == 0:
                T.ptx.tcgen05.wait.st()  # wait_st
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
        if wait_ld:
            T.ptx.tcgen05.wait.ld()
        else:
            if lane == 0:
                T.ptx.tcgen05.wait.ld()  # wait_ld
            T.cuda.warp_sync()
        D[lane] = reg[0]
        T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)  # dealloc

    return kernel


test_tcgen05_relinquish_requires_a_whole_warp = requires(
    one_lane, "relinquish", "divergent-collective tmem @relinquish"
)
test_tcgen05_wait_ld_requires_a_whole_warp = gives(
    one_lane, "divergent-collective tmem @wait_ld", wait_ld=False
)
test_tcgen05_wait_st_requires_a_whole_warp = gives(
    one_lane,
    "divergent-collective tmem @wait_st",
    "race tmem raw @ld <st",
    "tmem-freed-in-use tmem @dealloc <st",
    wait_st=False,
)


def test_tcgen05_st_takes_its_registers_when_it_is_issued():
    for schedule in SCHEDULES:
        assert (run(one_lane, schedule).outputs["D"] == 1).all()


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


test_tcgen05_alloc_requires_free_columns = requires(exhausted, "freed", "deadlock @second")


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
