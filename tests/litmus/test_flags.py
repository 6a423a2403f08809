"""What a flag in memory orders: a store that releases, a load that acquires what it has stored, scopes that hold both."""

import pytest

from phaseflip.findings import render
from phaseflip.spelling import T

from .harness import SCHEDULES, gives, in_cta, requires, run


def message(
    release=True, acquire=True, fence_before=False, fence_after=False, look=True, strong=True
):
    """Warp 0 writes data, then a flag; warp 1 polls the flag, then reads the data."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        flag = pool.alloc((1,), "uint32", align=16)
        s = pool.alloc((32,), "int32", align=16)
        pool.commit()
        if warp == 0:
            if lane == 0:
                flag[0] = T.uint32(0)
        T.cuda.cta_sync()
        if warp == 0:
            s[lane] = lane * 3  # store
            T.cuda.warp_sync()
            if lane == 0:
                if fence_before:
                    T.ptx.fence("acq_rel", "cta")
                if release:
                    T.ptx.st_release(flag.ptr_to([0]), T.uint32(1), scope="cta", space="shared", ptx_type="u32")  # fmt: skip
                elif strong:
                    T.ptx.st_relaxed(flag.ptr_to([0]), T.uint32(1), scope="cta", space="shared", ptx_type="u32")  # fmt: skip
                else:
                    flag[0] = T.uint32(1)  # weak
        else:
            seen: T.uint32 = T.uint32(0)
            tries: T.int32 = 0
            while (seen == T.uint32(0)) & (tries < 1):
                if acquire:
                    seen = T.ptx.ld_acquire(flag.ptr_to([0]), "uint32", "u32", scope="cta", space="shared")  # poll  # fmt: skip
                else:
                    seen = T.ptx.ld_relaxed(flag.ptr_to([0]), "uint32", "u32", scope="cta", space="shared")  # fmt: skip
                if look:
                    tries = 0
                else:
                    tries = 1
            if fence_after:
                T.ptx.fence("acq_rel", "cta")
            D[lane] = s[31 - lane]  # load

    return kernel


RACE = "race shared raw @load <store"
FAR = "shared::cluster"
test_load_after_a_flag_requires_release = requires(message, "release", RACE)
test_load_after_a_flag_requires_acquire = requires(message, "acquire", RACE)
test_load_after_a_flag_requires_a_look_at_its_value = requires(message, "look", RACE)
test_relaxed_store_requires_a_fence_before = requires(message, "fence_before", RACE, release=False)
test_relaxed_load_requires_a_fence_after = requires(message, "fence_after", RACE, acquire=False)
test_relaxed_accesses_with_fences_are_silent = gives(
    message, release=False, acquire=False, fence_before=True, fence_after=True
)
test_a_flag_requires_a_strong_store = gives(
    message, RACE, "race shared raw @poll <weak", release=False, strong=False
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_data_comes_with_the_flag(schedule):
    assert run(message, schedule).outputs["D"].tolist() == [(31 - lane) * 3 for lane in range(32)]


def volatile(fences=True):
    """ld.volatile and st.volatile are relaxed.sys."""

    @T.prim_func
    def kernel(
        F: T.Buffer((1,), "int32"), D: T.Buffer((32,), "int32"), S: T.Buffer((32,), "int32")
    ):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        if warp == 0:
            if lane == 0:
                S[5] = 77  # store
                if fences:
                    T.ptx.fence("acq_rel", "gpu")
                T.ptx.st_volatile(F.ptr_to([0]), T.int32(1), ptx_type="s32")
        else:
            seen: T.int32 = 0
            while seen == 0:
                seen = T.ptx.ld_volatile(F.ptr_to([0]), "int32", "s32")
            if fences:
                T.ptx.fence("acq_rel", "gpu")
            D[lane] = T.ptx.ld(S.ptr_to([5]), "int32", "s32", space="global")  # load

    return kernel


test_volatile_accesses_require_fences = requires(volatile, "fences", "race global raw @load <store")


def between_ctas(scope="cluster", exits=True):
    """CTA 1 writes data and a flag in its own memory; CTA 0 polls the flag there."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        flag = pool.alloc((1,), "uint32", align=16)
        s = pool.alloc((32,), "int32", align=16)
        pool.commit()
        if lane == 0:
            flag[0] = T.uint32(0)
        T.cuda.cluster_sync()
        far_flag = in_cta(flag, 1)
        far = in_cta(s, 1)
        if rank == 1:
            s[lane] = lane * 3  # store
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx.st_release(flag.ptr_to([0]), T.uint32(1), scope=scope, space="shared", ptx_type="u32")  # set  # fmt: skip
        else:
            seen: T.uint32 = T.uint32(0)
            while seen == T.uint32(0):
                seen = T.ptx.ld_acquire(far_flag.ptr_to([0]), "uint32", "u32", scope=scope, space=FAR)  # poll  # fmt: skip
            D[lane] = far[31 - lane]  # load
        T.cuda.cluster_sync()

    return kernel


test_flag_of_another_cta_requires_cluster_scope = gives(between_ctas)


def never(stored=False):
    """A flag that nobody sets."""

    @T.prim_func
    def kernel(F: T.Buffer((1,), "int32"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        seen: T.int32 = 0
        while seen == 0:
            seen = T.ptx.ld_acquire(F.ptr_to([0]), "int32", "s32")  # poll
        D[lane] = seen

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_flag_that_nobody_sets_is_a_deadlock(schedule):
    (found,) = run(never, schedule).findings
    assert found.title == "deadlock"
    assert "a loop that does not end" in found.what


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_narrow_scopes_are_named(schedule):
    found = run(between_ctas, schedule, scope="cta").findings
    assert {f.title for f in found} >= {"scope-too-narrow shared raw"}
    assert all(f.severity == "error" for f in found)
    assert any("give both scope='cluster'" in render(f) for f in found)
