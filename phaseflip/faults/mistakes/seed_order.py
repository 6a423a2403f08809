"""Catalogue, seed kernels: waits, barriers and fences that are missing or stand in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit.code import Code, Edit
from ...frontend.tirx.edit.expressions import integer, number, with_value
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import ACCUMULATOR, HOPPER, LOOPING, OPERANDS, SEED


@fault(
    "missing-phase-flip",
    "The phase is not flipped after the wait.",
    kernels=LOOPING,
    expected=[("stale-wait", "race")],
    chunks=2,
    blames=("ptx.mbarrier_try_wait", *ACCUMULATOR),
    example=Example(
        """
        T.ptx.mbarrier.try_wait(...)
        phase_mma = T.bitwise_xor(phase_mma, 1)
        """,
        "T.ptx.mbarrier.try_wait(...)",
    ),
)
def missing_phase_flip(code: Code) -> Iterator[Edit]:
    for s in sites.state_stores(code):
        if sites.is_update(s) and any(s.node.buffer.same_as(p) for p in sites.phases(code)):
            yield code.remove(s)


@fault(
    "initial-phase-one",
    "The first wait uses parity 1, which a new barrier has passed already.",
    kernels=SEED,
    expected=[("race tmem raw",)],
    blames=("ptx.mbarrier_try_wait", *ACCUMULATOR),
    example=Example("phase_mma: T.int32 = 0", "phase_mma: T.int32 = 1"),
)
def initial_phase_one(code: Code) -> Iterator[Edit]:
    for s in sites.initial_phases(code):
        if integer(s.node.value) == 0:
            yield code.replace(s, with_value(s, number(s.node.value, 1)))


@fault(
    "missing-load-sync",
    "The CTA barrier between the copy to shared memory and the MMA is missing.",
    kernels=SEED,
    expected=[("race shared raw",)],
    blames=OPERANDS,
    example=Example(
        """
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        """,
        'T.ptx.fence.proxy_async("shared::cta")',
    ),
)
def missing_load_sync(code: Code) -> Iterator[Edit]:
    return map(code.remove, sites.between_load_and_mma(code, "cuda.cta_sync"))


@fault(
    "missing-mma-wait",
    "Nobody waits for the MMA.",
    kernels=SEED,
    expected=[("race tmem raw",)],
    blames=ACCUMULATOR,
    example=Example(
        """
        T.ptx.mbarrier.try_wait(...)
        phase_mma = T.bitwise_xor(phase_mma, 1)
        """,
        "phase_mma = T.bitwise_xor(phase_mma, 1)",
    ),
)
def missing_mma_wait(code: Code) -> Iterator[Edit]:
    return map(code.remove, sites.mma_waits(code))


@fault(
    "missing-proxy-fence",
    "The proxy fence between the copy to shared memory and the MMA is missing.",
    kernels=SEED,
    expected=[("missing-proxy-fence",)],
    blames=OPERANDS,
    example=Example(
        """
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp_id == 0:
        """,
        """
        T.cuda.cta_sync()
        if warp_id == 0:
        """,
    ),
)
def missing_proxy_fence(code: Code) -> Iterator[Edit]:
    return map(code.remove, sites.between_load_and_mma(code, "ptx.fence_proxy_async"))


@fault(
    "missing-reuse-fence",
    "The proxy fence between the MMA wait and the next chunk's stores is missing.",
    kernels=LOOPING,
    expected=[("missing-proxy-fence",)],
    chunks=2,
    blames=OPERANDS,
    example=Example(
        """
        phase_mma = T.bitwise_xor(phase_mma, 1)
        T.ptx.fence.proxy_async("shared::cta")
        """,
        "phase_mma = T.bitwise_xor(phase_mma, 1)",
    ),
)
def missing_reuse_fence(code: Code) -> Iterator[Edit]:
    for wait in sites.mma_waits(code):
        for s in code.block(wait):
            if (
                s.name == "ptx.fence_proxy_async"
                and s.path > wait.path
                and code.enclosing(s, "for")
            ):
                yield code.remove(s)


@fault(
    "missing-after-fence",
    "tcgen05.fence::after_thread_sync between the MMA wait and the TMEM load is missing.",
    kernels=SEED,
    expected=[("missing-tcgen05-fence",)],
    blames=ACCUMULATOR,
    example=Example(
        """
        T.ptx.tcgen05.fence.after_thread_sync()
        Dreg = ...
        """,
        "Dreg = ...",
    ),
)
def missing_after_fence(code: Code) -> Iterator[Edit]:
    return map(code.remove, code.named("ptx.tcgen05_fence_after_thread_sync"))


@fault(
    "missing-wait-ld",
    "The registers of a TMEM load are read without tcgen05.wait::ld.",
    kernels=SEED,
    expected=[("uninitialised-read",), ("race register",)],
    blames=("tile.copy_async", "tile.cast"),
    example=Example(
        """
        T.wg.copy_async(...)
        T.ptx.tcgen05.wait.ld()
        """,
        "T.wg.copy_async(...)",
    ),
)
def missing_wait_ld(code: Code) -> Iterator[Edit]:
    return map(code.remove, code.named("ptx.tcgen05_wait_ld"))


@fault(
    "missing-init-sync",
    "The CTA barrier after the initialisation of barrier and TMEM is missing.",
    kernels=(*SEED, *HOPPER),
    expected=[("barrier-not-initialised",), ("race shared raw",)],
    blames=("ptx.mbarrier_try_wait", "declare"),
    example=Example(
        """
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        """,
        "T.ptx.fence.mbarrier_init()",
    ),
)
def missing_init_sync(code: Code) -> Iterator[Edit]:
    found = [sites.first_sync_after(code, s) for s in code.named("ptx.mbarrier_init")]
    return map(code.remove, dict.fromkeys(t for t in found if t is not None))


@fault(
    "sync-in-warp-branch",
    "The CTA barrier stands inside a branch that one warp takes, while the others go on.",
    kernels=SEED,
    expected=[("divergent-collective",), ("deadlock",)],
    blames=("cuda.cta_sync", "ptx.mbarrier_try_wait"),
    example=Example(
        """
        T.cuda.cta_sync()
        if warp_id == 0:
            if T.ptx.elect_sync():
        """,
        """
        if warp_id == 0:
            T.cuda.cta_sync()
            if T.ptx.elect_sync():
        """,
    ),
)
def sync_in_warp_branch(code: Code) -> Iterator[Edit]:
    for s in code.named("cuda.cta_sync"):
        branch = code.next(s)
        if branch is None or branch.name != "if" or sites.guard_kind(code, branch) != "warp":
            continue
        if code.next(branch) is not None:  # else they exit, and a barrier waits for nobody who has
            yield code.move_into(s, branch, first=True)
