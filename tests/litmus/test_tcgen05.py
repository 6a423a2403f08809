"""tcgen05.mma, ld, st, commit, their waits and fences, and the proxies of their shared-memory operands."""

import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane

from phaseflip.spelling import T

from .harness import gives, line_of, requires, run

M, N, K = 128, 16, 16
LAYOUT = mma_shared_layout(tvm.DataType("float16"), SwizzleMode.SWIZZLE_32B_ATOM, (M, K))
WIDE = mma_shared_layout(tvm.DataType("float16"), SwizzleMode.SWIZZLE_32B_ATOM, (2 * M, K))
ROWS = TileLayout(S[(M, 64) : (1 @ TLane, 1 @ TCol)])


def product(
    writer_fence=True,
    every_writer=True,
    issuer_fence=False,
    load_sync=True,
    elect=True,
    commit_after=True,
    commit=True,
    commit_elect=True,
    issuer_commits=True,
    wait=True,
    after_fence=True,
    wait_ld=True,
    final_sync=True,
    accumulate=False,
    parity=0,
):
    """D = A A^T by one MMA, each thread reading one element of its row."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        Tx.cta.copy(s[:, :], A[:, :])  # copy
        if writer_fence:
            if every_writer:
                T.ptx.fence.proxy_async("shared::cta")
            else:
                if warp == 0:
                    T.ptx.fence.proxy_async("shared::cta")
        if load_sync:
            T.cuda.cta_sync()
        if warp == 0:
            if not elect:
                Tx.gemm_async(  # mma_by_warp
                    tmem[:, 0:N], s[:, :], s[0:N, :], accum=False, dispatch="tcgen05", cta_group=1
                )
            if T.ptx.elect_sync():
                if issuer_fence:
                    T.ptx.fence.proxy_async("shared::cta")
                if not commit_after:
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
                if elect:
                    Tx.gemm_async(  # mma
                        tmem[:, 0:N], s[:, :], s[0:N, :], accum=accumulate, dispatch="tcgen05",
                        cta_group=1,
                    )  # fmt: skip
                if commit and commit_after and commit_elect and issuer_commits:
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
            if not commit_elect:
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)  # commit_by_warp
        if not issuer_commits:
            if warp == 1:
                if T.ptx.elect_sync():
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        if wait:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), parity)  # wait
        if after_fence:
            T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((1,), "float32")
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
        if wait_ld:
            T.ptx.tcgen05.wait.ld()
        D[warp * 32 + lane] = reg[0]  # use
        if final_sync:
            T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)  # dealloc

    return kernel


UNORDERED = ("race tmem raw @ld <mma", "tmem-freed-in-use tmem @dealloc <mma")

# -- shared-memory operands: generic write, async read ----------------------------------------------------------------------
test_mma_operand_read_requires_proxy_fence_of_the_writers = requires(
    product, "writer_fence", "missing-proxy-fence shared raw @mma <copy"
)
test_mma_operand_read_requires_proxy_fence_of_every_writer = requires(
    product, "every_writer", "missing-proxy-fence shared raw @mma <copy"
)
test_mma_operand_read_requires_cta_sync = requires(
    product, "load_sync", "race shared raw @mma <copy"
)
test_proxy_fence_by_the_issuing_thread_after_the_rendezvous_is_a_note = gives(
    product, "?missing-proxy-fence shared raw @mma <copy", writer_fence=False, issuer_fence=True
)

# -- the accumulator ------------------------------------------------------------------------------------------------------
test_tcgen05_ld_requires_wait_for_the_mma = requires(product, "wait", *UNORDERED)
test_tcgen05_ld_requires_commit_after_the_mma = requires(product, "commit_after", *UNORDERED)
test_tcgen05_ld_requires_commit_by_the_issuing_thread = requires(
    product, "issuer_commits", *UNORDERED
)
test_tcgen05_ld_requires_fence_after_thread_sync = requires(
    product, "after_fence", "~missing-tcgen05-fence tmem raw @ld <mma"
)
test_wait_requires_commit = requires(product, "commit", "deadlock @wait")
test_register_read_requires_wait_ld = requires(
    product,
    "wait_ld",
    "uninitialised-read register @use <ld",
    "tmem-freed-in-use tmem @dealloc <ld",
)


test_mma_requires_one_thread = requires(
    product, "elect", "duplicate-issue tmem @mma_by_warp <mma_by_warp"
)
test_commit_requires_one_thread = requires(
    product, "commit_elect", "over-arrival @commit_by_warp <commit_by_warp", *UNORDERED
)
test_mma_that_accumulates_requires_an_initialised_accumulator = gives(
    product, "uninitialised-read tmem @mma", accumulate=True
)
test_tcgen05_dealloc_requires_cta_sync_after_the_last_load = requires(
    product, "final_sync", "tmem-freed-in-use tmem @dealloc <ld"
)
test_tcgen05_ld_requires_the_parity_of_the_phase_that_the_commit_ends = gives(
    product, "lapped-wait @wait", *UNORDERED, parity=1
)


# -- what the findings say ------------------------------------------------------------------------------------------------
def told(**flags):
    """Schedule -> finding by code."""
    runs = {s: run(product, s, **flags).findings for s in ("in-order", "eager", "lazy", "random:1")}
    return {s: {f.code: f for f in found} for s, found in runs.items()}


def test_a_race_with_an_mma_that_no_commit_covers_says_so():
    mma = line_of(product, "mma")
    for flags in ({"commit_after": False}, {"issuer_commits": False}):
        for found in told(**flags).values():
            for code in ("race", "tmem-freed-in-use"):
                assert (
                    f"no tcgen05.commit of the issuing thread follows the MMA at line {mma}"
                    in found[code].why
                )
                assert "T.ptx.tcgen05.commit after the MMA" in found[code].fix
    for found in told(wait=False).values():
        assert "no tcgen05.commit" not in found["race"].why


def test_a_race_behind_a_wait_on_a_fresh_barrier_says_so():
    for found in told(parity=1).values():
        race = found["race"]
        assert f"the wait at line {line_of(product, 'wait')} passed at once" in race.why
        assert "parity 1 of a fresh barrier means the phase before the first" in race.why
        assert race.fix == "wait for the first phase with parity 0, and then for each phase in turn"
    for found in told(wait=False).values():
        assert "passed at once" not in found["race"].why


def test_tmem_that_is_freed_in_use_asks_for_what_is_missing_only():
    """The kernel has a CTA barrier before tcgen05.dealloc, except where final_sync is off."""
    freed = "tmem-freed-in-use"
    for found in told(wait_ld=False).values():
        assert found[freed].fix.startswith("T.ptx.tcgen05.wait.ld()")
        assert "cta_sync" not in found[freed].fix
    for found in told(wait=False).values():
        assert "wait for the mbarrier of its tcgen05.commit" in found[freed].fix
        assert "cta_sync" not in found[freed].fix
    for found in told(final_sync=False).values():
        assert "cta_sync" in found[freed].fix and "nothing orders" in found[freed].why


# -- reuse ----------------------------------------------------------------------------------------------------------------
def reuse(
    overwrite_fence=True,
    fence_after_wait=True,
    wait_ld=True,
    before_fence=True,
    after_fence=True,
    sync_between=True,
):
    """Two rounds through the same operands and the same accumulator.

    `sync_between`: the CTA meets between the two tcgen05 fences; else before both, and again after them.
    """

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        reg = T.alloc_local((1,), "float32")
        for i in T.serial(2):
            Tx.cta.copy(s[:, :], A[:, :])  # copy
            T.ptx.fence.proxy_async("shared::cta")
            T.cuda.cta_sync()
            if warp == 0:
                if after_fence and sync_between:
                    T.ptx.tcgen05.fence.after_thread_sync()
                if T.ptx.elect_sync():
                    Tx.gemm_async(  # mma
                        tmem[:, 0:N], s[:, :], s[0:N, :], accum=False, dispatch="tcgen05",
                        cta_group=1,
                    )  # fmt: skip
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
            if not fence_after_wait:
                T.ptx.fence.proxy_async("shared::cta")
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), i)
            T.ptx.tcgen05.fence.after_thread_sync()
            if overwrite_fence and fence_after_wait:
                T.ptx.fence.proxy_async("shared::cta")
            T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
            if wait_ld:
                T.ptx.tcgen05.wait.ld()
            if not sync_between:
                T.cuda.cta_sync()
            if before_fence:
                T.ptx.tcgen05.fence.before_thread_sync()
            if not sync_between:
                T.ptx.tcgen05.fence.after_thread_sync()
        T.ptx.tcgen05.wait.ld()
        D[warp * 32 + lane] = reg[0]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_overwriting_mma_operands_requires_proxy_fence_after_the_wait = requires(
    reuse, "overwrite_fence", "~missing-proxy-fence shared war @copy <mma"
)
test_overwriting_mma_operands_requires_the_fence_after_the_wait_not_before = requires(
    reuse, "fence_after_wait", "~missing-proxy-fence shared war @copy <mma"
)
test_mma_over_what_was_loaded_requires_wait_ld = requires(
    reuse, "wait_ld", "race tmem war @mma <ld"
)
test_mma_over_what_was_loaded_requires_fence_before_thread_sync = requires(
    reuse, "before_fence", "~missing-tcgen05-fence tmem war @mma <ld"
)
test_mma_over_what_was_loaded_requires_fence_after_thread_sync = requires(
    reuse, "after_fence", "~missing-tcgen05-fence tmem war @mma <ld"
)
test_mma_over_what_was_loaded_requires_a_barrier_between_the_fences = requires(
    reuse, "sync_between", "~missing-tcgen05-fence tmem war @mma <ld"
)
