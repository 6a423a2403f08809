"""cp.async.bulk.tensor: byte counts, what a load's completion orders, proxies and bulk groups of stores."""

import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run

ROWS, COLUMNS = 32, 8
BOX = ROWS * COLUMNS * 2
PLAIN = TileLayout(S[(ROWS, COLUMNS) : (COLUMNS, 1)])


# -- loads ------------------------------------------------------------------------------------------------------------------
def loads(
    wait=True, nbytes=2 * BOX, expect_first=False, expect=True, elect=True, init_sync=True, parity=0
):
    """Warp 0 loads two boxes, both warps wait and read them."""

    @T.prim_func
    def kernel(
        A: T.Buffer((2 * ROWS, COLUMNS), "float16"), D: T.Buffer((2 * ROWS, COLUMNS), "float16")
    ):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        first = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        second = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        if init_sync:
            T.cuda.cta_sync()
        if warp == 0:
            if T.ptx.elect_sync():
                if expect_first:
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)  # early
                Tx.copy_async(  # first
                    first[:, :], A[0:ROWS, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
                )
                Tx.copy_async(  # second
                    second[:, :], A[ROWS : 2 * ROWS, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
                )
                if not expect_first:
                    if expect:
                        T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)  # late
                    else:
                        T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # plain
        if wait:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), parity)  # wait
        if warp == 0:
            D[lane, 0] = first[lane, 0]  # read_first
        else:
            D[32 + lane, 0] = second[lane, 0]  # read_second

    return kernel


test_load_result_requires_wait = requires(
    loads,
    "wait",
    "race shared raw @read_first <first",
    "race shared raw @read_second <second",
)
test_load_result_requires_the_parity_of_its_phase = gives(
    loads,
    "lapped-wait @wait",
    "race shared raw @read_first <first",
    "race shared raw @read_second <second",
    parity=1,
)


def test_a_race_with_a_load_behind_a_wait_on_a_fresh_barrier_says_so():
    for schedule in SCHEDULES:
        for race in run(loads, schedule, parity=1).findings:
            if race.code == "race":
                assert "passed at once: parity 1 of a fresh barrier" in race.why


test_loads_may_be_issued_before_or_after_expect_tx = gives(loads, expect_first=True)
test_fewer_bytes_than_come_before_expect = gives(loads, "tx-count-mismatch @late", nbytes=BOX)
test_fewer_bytes_than_come_after_expect = gives(
    loads, "tx-count-mismatch @early", nbytes=BOX, expect_first=True
)
test_loads_require_expect_tx = gives(loads, "tx-count-mismatch @plain", expect=False)
test_more_bytes_than_come = gives(loads, "deadlock @wait", nbytes=3 * BOX)
test_more_bytes_than_come_after_expect = gives(
    loads, "deadlock @wait", nbytes=3 * BOX, expect_first=True
)


def test_a_deadlock_names_the_bytes():
    for schedule in SCHEDULES:
        (finding,) = run(loads, schedule, nbytes=3 * BOX).findings
        assert f"{2 * BOX} of {3 * BOX} bytes" in finding.message
        assert all(e["barrier"]["bytes_missing"] == BOX for e in finding.data)


test_loads_require_cta_sync_after_barrier_init = requires(
    loads, "init_sync", "barrier-not-initialised @wait"
)


def initialised(by="init", copy=True):
    """An asynchronous operation arrives on a fresh barrier; the fence after its init is left out with `by` ""."""
    nbytes = BOX if copy else 0

    @T.prim_func
    def kernel(A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((64,), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # init
                if by == "init":
                    T.ptx.fence.mbarrier_init()
                if by == "proxy":
                    T.ptx.fence.proxy_async("shared::cta")
        if by == "others":
            if warp == 1:
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if by == "too late":
            if warp == 0:
                T.ptx.fence.mbarrier_init()
        if warp == 1:
            if lane == 0:
                if by == "issuer":
                    T.ptx.fence.proxy_async("shared::cta")
                if copy:
                    Tx.copy_async(  # copy_in
                        s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
                    )
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)
                else:
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)  # commit
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = T.float16(1)

    return kernel


test_load_to_a_barrier_requires_fence_mbarrier_init = gives(
    initialised, "?missing-proxy-fence shared raw @copy_in <init", by=""
)
test_commit_to_a_barrier_requires_fence_mbarrier_init = gives(
    initialised, "?missing-proxy-fence shared raw @commit <init", by="", copy=False
)
test_load_to_a_barrier_requires_the_fence_of_the_initialising_thread = gives(
    initialised, "?missing-proxy-fence shared raw @copy_in <init", by="others"
)
test_load_to_a_barrier_requires_the_fence_before_the_rendezvous = gives(
    initialised, "?missing-proxy-fence shared raw @copy_in <init", by="too late"
)
test_fence_mbarrier_init_after_the_init_is_enough = gives(initialised)
test_proxy_fence_after_the_init_is_enough = gives(initialised, by="proxy")
test_proxy_fence_of_the_issuing_thread_is_enough_for_an_init = gives(initialised, by="issuer")
test_commit_to_a_fenced_barrier_is_silent = gives(initialised, copy=False)


def shared_phase(nbytes=2 * BOX, expect_last=False):
    """Two warps load a box each for one phase, which the first (or the last) of them tells how much to expect."""

    @T.prim_func
    def kernel(
        A: T.Buffer((2 * ROWS, COLUMNS), "float16"), D: T.Buffer((2 * ROWS, COLUMNS), "float16")
    ):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        first = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        second = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if warp == 0:
            if T.ptx.elect_sync():
                Tx.copy_async(  # first
                    first[:, :], A[0:ROWS, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
                )
                if not expect_last:
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)  # by_first
        else:
            if T.ptx.elect_sync():
                Tx.copy_async(  # second
                    second[:, :], A[ROWS : 2 * ROWS, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
                )
                if expect_last:
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)  # by_second
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
        if warp == 0:
            D[lane, 0] = first[lane, 0]  # read_first
        else:
            D[32 + lane, 0] = second[lane, 0]  # read_second

    return kernel


test_two_warps_may_load_for_one_phase = gives(shared_phase)
test_loads_of_two_warps_require_the_bytes_of_both = gives(
    shared_phase, "tx-count-mismatch @by_first", nbytes=BOX
)
test_loads_of_two_warps_require_the_bytes_of_both_from_whichever_expects = gives(
    shared_phase, "tx-count-mismatch @by_second", nbytes=BOX, expect_last=True
)


def releases(by_issuer=True):
    """A thread writes shared memory and issues a load; who waits for the load wants to read the writes too."""

    @T.prim_func
    def kernel(A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((ROWS,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        other = pool.alloc((1,), "int32")
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                other[0] = 7  # store
                Tx.copy_async(s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0]))
                if by_issuer:
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
        if warp == 1:
            if not by_issuer:
                if lane == 0:
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
        if warp == 2:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = other[0]  # load

    return kernel


test_completion_of_a_load_releases_its_own_accesses_only = requires(
    releases, "by_issuer", "race shared raw @load <store"
)


def rounds(sync=True):
    """Both warps wait for each of three loads into one buffer."""

    @T.prim_func
    def kernel(A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((64,), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        for i in T.serial(3):
            if warp == 0:
                if lane == 0:
                    Tx.copy_async(s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0]))
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), i & 1)  # wait
            if sync:
                T.cuda.cta_sync()
        D[warp * 32 + lane] = T.float16(0)

    return kernel


test_waiting_for_every_load_requires_a_rendezvous = requires(rounds, "sync", "lapped-wait @wait")


# -- stores -----------------------------------------------------------------------------------------------------------------
def stores(
    fence=True, sync=True, commit=True, wait=True, reads_only=True, meet=True, newest=0, late=True
):
    """Two rounds through one staging buffer: all threads write it, one stores it. late: the commit follows the store."""

    @T.prim_func
    def kernel(D: T.Buffer((2 * ROWS, COLUMNS), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        for i in T.serial(2):
            for c in T.serial(COLUMNS):
                s[lane, c] = T.float16(1)  # write
            if fence:
                T.ptx.fence.proxy_async("shared::cta")
            if sync:
                T.cuda.cta_sync()
            if lane == 0:
                if not late:
                    T.ptx.cp_async.bulk.commit_group()
                Tx.copy_async(  # store
                    D[i * ROWS : i * ROWS + ROWS, :], s[:, :], dispatch="tma_auto"
                )
                if T.And(commit, late):
                    T.ptx.cp_async.bulk.commit_group()
                if wait:
                    T.ptx.cp_async.bulk.wait_group(newest, reads_only)
            if meet:
                T.cuda.cta_sync()

    return kernel


REUSE = "race shared war @write <store"
test_store_requires_fence_of_the_writers = requires(
    stores, "fence", "missing-proxy-fence shared raw @store <write"
)
test_store_requires_cta_sync = requires(stores, "sync", "race shared raw @store <write")
test_reuse_of_the_source_requires_wait_group = requires(stores, "wait", REUSE)
test_reuse_of_the_source_requires_commit_group = requires(stores, "commit", REUSE)
test_reuse_of_the_source_requires_commit_group_after_the_store = requires(stores, "late", REUSE)
test_reuse_by_others_requires_cta_sync_after_wait_group = requires(stores, "meet", REUSE)
test_wait_group_without_read_serves_the_reuse_as_well = gives(stores, reads_only=False)
test_wait_group_leaves_the_newest_groups_alone = gives(stores, REUSE, newest=1)


def reads_back(reads_only=False, by_ld=True):
    """What a store wrote, its thread reads by a load of the generic proxy (`test_restrict.py` says why by T.ptx.ld)."""

    @T.prim_func
    def kernel(C: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((1,), "float16")):
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
            Tx.copy_async(C[:, :], s[:, :], dispatch="tma_auto")  # store
            T.ptx.cp_async.bulk.commit_group()
            if reads_only:
                T.ptx.cp_async.bulk.wait_group(0, True)
            else:
                T.ptx.cp_async.bulk.wait_group(0, False)
            if by_ld:
                T.ptx.ld(C.ptr_to([0, 0]), "uint16", "b16", dst=found.ptr_to([0]))  # load
                D[0] = found[0]
            else:
                D[0] = C[0, 0]  # plain

    return kernel


test_reading_what_was_stored_requires_wait_group_without_read = gives(
    reads_back, "race global raw @load <store", reads_only=True
)
test_wait_group_without_read_completes_the_writes = gives(reads_back)
test_reading_what_was_stored_requires_a_load_that_is_not_read_only = requires(
    reads_back, "by_ld", "race global raw @plain <store"
)


# -- with the tensor core -----------------------------------------------------------------------------------------------------
M, N, K = 128, 16, 16
TILE = M * K * 2
LAYOUT = mma_shared_layout(tvm.DataType("float16"), SwizzleMode.SWIZZLE_32B_ATOM, (M, K))


def refills(wait=True, wait_load=True):
    """Two rounds: load A, multiply, refill; without `wait` the second load does not wait for the first MMA."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((1,), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        full = pool.alloc((1,), "uint64", align=8)
        done = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(full.ptr_to([0]), 1)
                T.ptx.mbarrier.init(done.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0],
            layout=TileLayout(S[(M, 64) : (1 @ TLane, 1 @ TCol)]),
        )  # fmt: skip
        if warp == 0:
            if T.ptx.elect_sync():
                for i in T.serial(2):
                    Tx.copy_async(  # load
                        s[:, :], A[:, :], dispatch="tma_auto", mbar=full.ptr_to([0])
                    )
                    T.ptx.mbarrier.arrive.expect_tx(full.ptr_to([0]), TILE)  # expect
                    if wait_load:
                        T.ptx.mbarrier.try_wait(full.ptr_to([0]), i)
                    Tx.gemm_async(  # mma
                        tmem[:, 0:N],
                        s[:, :],
                        s[0:N, :],
                        accum=False,
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    if wait:
                        T.ptx.tcgen05.commit(done.ptr_to([0]), cta_group=1)
                        T.ptx.mbarrier.try_wait(done.ptr_to([0]), i)
                if not wait:
                    T.ptx.tcgen05.commit(done.ptr_to([0]), cta_group=1)
                    T.ptx.mbarrier.try_wait(done.ptr_to([0]), 0)
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_refill_requires_wait_for_the_mma_and_no_fence = requires(
    refills, "wait", "race shared war @load <mma"
)
test_mma_requires_wait_for_the_load = requires(
    refills,
    "wait_load",
    "race shared raw @mma <load",
    "race shared waw @load <load",
    "over-arrival @expect <expect",
    "tx-count-mismatch @expect",
)
