"""fence.proxy.async by state space: it covers what lies in that space, and nothing else."""

from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip.spelling import T

from .harness import gives

ROWS, COLUMNS = 32, 8
BOX = ROWS * COLUMNS * 2
PLAIN = TileLayout(S[(ROWS, COLUMNS) : (COLUMNS, 1)])


def reloaded(fence="global", every_writer=True, issuer_fence=False):
    """A warp stores into global memory, and a bulk load brings what it stored to shared memory."""

    @T.prim_func
    def kernel(C: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((ROWS,), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        C[lane, 0] = T.float16(1)  # store
        if fence != "none":
            if T.Or(every_writer, lane == 1):
                T.ptx.fence.proxy_async(fence)
        T.cuda.cta_sync()
        if lane == 0:
            if issuer_fence:
                T.ptx.fence.proxy_async("")
            Tx.copy_async(  # load
                s[:, :], C[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
            )
            T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[lane] = s[lane, 0]

    return kernel


STORE = "missing-proxy-fence global raw @load <store"
test_bulk_load_of_what_was_stored_requires_proxy_fence = gives(reloaded, STORE, fence="none")
test_bulk_load_of_what_was_stored_requires_fence_of_every_writer = gives(
    reloaded, STORE, every_writer=False
)
test_a_global_fence_serves_global_memory = gives(reloaded)
test_a_fence_without_space_serves_global_memory = gives(reloaded, fence="")
test_a_shared_fence_does_not_serve_global_memory = gives(reloaded, STORE, fence="shared::cta")
test_a_cluster_fence_does_not_serve_global_memory = gives(reloaded, STORE, fence="shared::cluster")
test_a_fence_of_the_issuer_after_the_rendezvous_is_a_note = gives(
    reloaded, f"?{STORE}", fence="none", issuer_fence=True
)


def stored(fence="shared::cta"):
    """A warp fills shared memory, and a bulk store brings it to global memory."""

    @T.prim_func
    def kernel(D: T.Buffer((ROWS, COLUMNS), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        for c in T.serial(COLUMNS):
            s[lane, c] = T.float16(1)  # write
        T.ptx.fence.proxy_async(fence)
        T.cuda.cta_sync()
        if lane == 0:
            Tx.copy_async(D[:, :], s[:, :], dispatch="tma_auto")  # store
            T.ptx.cp_async.bulk.commit_group()
            T.ptx.cp_async.bulk.wait_group(0, True)

    return kernel


WRITE = "missing-proxy-fence shared raw @store <write"
test_a_global_fence_does_not_serve_shared_memory = gives(stored, WRITE, fence="global")
test_a_cta_fence_serves_the_own_shared_memory = gives(stored)
test_a_cluster_fence_serves_the_own_shared_memory = gives(stored, fence="shared::cluster")
test_a_fence_without_space_serves_the_own_shared_memory = gives(stored, fence="")
