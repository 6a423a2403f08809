"""Registers that are read before anything is stored to them, and proxy fences that cover another state space."""

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.faults import find_fault
from phaseflip.gemm.kernel import find_kernel
from phaseflip.spelling import T

N = 128
SCHEDULES = ["in-order", "eager", "lazy", "random:1"]


@T.prim_func
def never_stored(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32
    D[tid] = x + A[tid]  # noqa: F821


@T.prim_func
def stored_by_one_warp(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    x: T.int32
    if warp == 0:
        x = A[lane]
    if warp == 0:
        D[lane] = x


@T.prim_func
def stored_after_use_in_loop(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32
    for i in T.serial(3):
        D[tid] = x  # noqa: F821
        x = A[tid] + i


@T.prim_func
def stored_on_both_paths(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32
    if A[tid] > 0:
        x = 1
    else:
        x = 2
    D[tid] = x


@T.prim_func
def stored_by_one_warp_only(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    x: T.int32
    if warp == 0:
        x = A[lane]
    D[warp * 32 + lane] = x


@T.prim_func
def last_element_left_out(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x = T.alloc_local((4,), "int32")
    total = T.alloc_local((1,), "int32")
    total[0] = 0
    for i in range(3):
        x[i] = A[tid]
    for i in range(4):
        total[0] = total[0] + x[i]
    D[tid] = total[0]


@T.prim_func
def array_of_one_warp(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    x = T.alloc_local((4,), "int32")
    if warp == 0:
        for i in range(4):
            x[i] = A[lane]
    for i in range(4):
        D[warp * 32 + lane] = x[i]


@T.prim_func
def element_of_each_lane(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x = T.alloc_local((4,), "int32")
    x[tid % 4] = A[tid]
    D[tid] = x[(tid + 1) % 4]


@T.prim_func
def own_element_of_each_lane(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x = T.alloc_local((4,), "int32")
    x[tid % 4] = A[tid]
    D[tid] = x[tid % 4]


@T.prim_func
def halves_of_a_warp_store_apart(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x = T.alloc_local((4,), "int32")
    if tid % 32 < 16:
        for i in range(4):
            x[i] = A[tid]
    else:
        for i in range(4):
            x[i] = A[tid]
    for i in range(4):
        D[tid] = x[i]
    for i in range(4):
        D[tid] = x[i]


def found(kernel, schedule):
    arrays = [np.arange(-64, 64, dtype=np.int32), np.zeros(N, np.int32)]
    run = simulate(lower(kernel), arrays, schedule)
    return run, [(f.title, f.severity, f.line) for f in run.findings]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "kernel",
    [
        never_stored,
        stored_after_use_in_loop,
        stored_by_one_warp_only,
        last_element_left_out,
        array_of_one_warp,
        element_of_each_lane,
    ],
)
def test_reading_a_register_before_a_store_is_reported(kernel, schedule):
    _, findings = found(kernel, schedule)
    assert [(title, severity) for title, severity, _ in findings] == [
        ("uninitialised-read register", "error")
    ]
    assert findings[0][2] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", [stored_by_one_warp, stored_on_both_paths])
def test_a_register_stored_on_the_path_taken_is_not_reported(kernel, schedule):
    run, findings = found(kernel, schedule)
    assert findings == []
    a = np.arange(-64, 64)
    expected = np.where(a > 0, 1, 2)
    if kernel is stored_by_one_warp:
        expected = np.where(np.arange(N) < 32, a, 0)
    assert run.outputs["D"].tolist() == expected.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", [own_element_of_each_lane, halves_of_a_warp_store_apart])
def test_elements_that_each_lane_has_stored_are_not_reported(kernel, schedule):
    run, findings = found(kernel, schedule)
    assert findings == []
    assert run.outputs["D"].tolist() == list(range(-64, 64))


@pytest.mark.parametrize(
    ("kernel", "who"),
    [
        (stored_by_one_warp_only, "CTA 0 warps 1-3 read x"),
        (array_of_one_warp, "CTA 0 warps 1-3 read x"),
        (last_element_left_out, "CTA 0 warps 0-3 read x"),
        (element_of_each_lane, "CTA 0 warps 0-3 read x"),
    ],
)
def test_the_lanes_that_have_not_stored_and_the_array_are_named(kernel, who):
    (finding,) = found(kernel, "in-order")[0].findings
    assert finding.what == who


def test_unwritten_arrays_are_not_tracked_without_memory_checks():
    arrays = [np.zeros(N, np.int32), np.zeros(N, np.int32)]
    assert simulate(lower(array_of_one_warp), arrays, checks="races,protocol").findings == []


def test_a_proxy_fence_of_global_memory_does_not_cover_shared_memory():
    function = find_kernel("hgemm_v1").build(128, 128, 64)
    narrow = find_fault("narrow-fence")
    between_copy_and_mma = narrow.sites(function)[1]
    mutant = narrow.apply(function, between_copy_and_mma)
    zeros = [np.zeros(shape, np.float16) for shape in ((128, 64), (128, 64), (128, 128))]
    titles = {f.title for f in simulate(lower(mutant), zeros).findings if f.severity == "error"}
    assert titles == {"missing-proxy-fence shared raw"}
