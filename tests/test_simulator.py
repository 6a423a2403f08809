"""simulate() and launch(): results, what is left alone, schedules, deadlocks, refusals."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import phaseflip
from kernels.hgemm_v1 import KERNEL as V1
from kernels.hgemm_v2 import KERNEL as V2
from kernels.hgemm_v3 import KERNEL as V3
from phaseflip import find_kernel, launch, lower, simulate
from phaseflip.errors import BadInput, Deadlock, FindingWarning, KernelFault, UnsupportedInstruction
from phaseflip.frontend.tirx.lowering import lower_once
from phaseflip.spelling import T

N = 128
SCHEDULES = ["in-order", "eager", "lazy", "random:0", "random:11"]
GEMMS = [
    (V1, (128, 128, 64)),
    (V2, (128, 128, 64)),
    (V2, (128, 128, 320)),
    (V3, (128, 128, 64)),
    (V3, (256, 256, 128)),
    (V3, (384, 640, 192)),
]
CHAPTER = Path(__file__).parent / "data" / "chapter_kernels.py"


def lowered(kernel, shape):
    return lower_once(kernel.build(*shape))


def operands(shape, seed=0):
    """Small integers: every order of summation is exact, so the result is known to the bit."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (n, k)))
    return a, b, np.full((m, n), np.nan, np.float16)


def expected(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)


def errors(run):
    return [str(f) for f in run.findings if f.severity == "error"]


# -- results ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kernel", "shape"), GEMMS)
def test_the_kernels_compute_the_product(kernel, shape):
    a, b, d = operands(shape)
    run = simulate(lowered(kernel, shape), [a, b, d])
    assert errors(run) == []
    np.testing.assert_array_equal(run.outputs["D"], expected(a, b))


@pytest.mark.parametrize(("kernel", "shape"), [g for g in GEMMS if g[1][0] * g[1][1] <= 256 * 256])
def test_schedules_give_the_same_bits_and_counters(kernel, shape):
    rng = np.random.default_rng(3)
    m, n, k = shape
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (n, k)))
    d = np.zeros((m, n), np.float16)
    runs = [simulate(lowered(kernel, shape), [a, b, d], s) for s in SCHEDULES]
    for schedule, run in zip(SCHEDULES, runs, strict=True):
        assert errors(run) == [] and run.schedule == schedule
        assert run.counters == runs[0].counters
        np.testing.assert_array_equal(
            run.outputs["D"].view(np.uint16), runs[0].outputs["D"].view(np.uint16)
        )


@pytest.mark.parametrize("schedule", ["in-order", "random:4"])
def test_two_runs_are_identical(schedule):
    shape = (256, 128, 128)
    a, b, d = operands(shape)
    one, two = (simulate(lowered(V3, shape), [a, b, d], schedule) for _ in range(2))
    assert one.counters == two.counters and one.findings == two.findings
    np.testing.assert_array_equal(one.outputs["D"], two.outputs["D"])


def test_counters_of_a_gemm():
    shape = (256, 256, 128)
    counters = simulate(lowered(V3, shape), operands(shape)).counters
    tiles, chunks = 4, 2
    assert counters["tcgen05.mma"] == tiles * chunks * 4
    assert counters["tcgen05.commit"] == tiles * chunks
    assert counters["bytes_global_to_shared"] == tiles * chunks * 2 * 128 * 64 * 2
    assert counters["bytes_global_stored"] == 256 * 256 * 2
    assert counters["barrier_waits"] == tiles * 4 * (1 + 2 * chunks + 1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("hgemm_v1", (128, 128, 64)), ("hgemm_v2", (128, 128, 128)), ("hgemm_v3", (256, 128, 128))],
)
@pytest.mark.parametrize("schedule", ["in-order", "lazy", "random:2"])
def test_the_chapters_literal_kernels_give_the_right_numbers(name, shape, schedule):
    """They lack fences that PTX asks for, which is for the race checks to say; the numbers are right."""
    a, b, d = operands(shape)
    run = simulate(chapter(name, shape), [a, b, d], schedule)
    np.testing.assert_array_equal(run.outputs["D"], expected(a, b))


def chapter(name, shape):
    return lower_once(find_kernel(f"{CHAPTER}:{name}").build(*shape))


def test_progress_is_told_after_every_cta():
    shape, told = (256, 384, 64), []
    simulate(lowered(V3, shape), operands(shape), progress=lambda *numbers: told.append(numbers))
    assert told == [(i, 6) for i in range(1, 7)]


def test_a_grid_in_three_dimensions():
    @T.prim_func
    def kernel(D: T.Buffer((2, 3, 4, 32), "int32")):
        T.device_entry()
        bx, by, bz = T.cta_id([2, 3, 4])
        tid = T.thread_id([32])
        D[bx, by, bz, tid] = bx * 1000 + by * 100 + bz * 10 + tid

    run = simulate(kernel, [np.zeros((2, 3, 4, 32), np.int32)])
    x, y, z, t = np.ogrid[:2, :3, :4, :32]
    np.testing.assert_array_equal(run.outputs["D"], x * 1000 + y * 100 + z * 10 + t)


# -- arrays -----------------------------------------------------------------------------------------------------------
@T.prim_func
def half_written(A: T.Buffer((N,), "float32"), D: T.Buffer((N,), "float32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    if tid % 2 == 0:
        D[tid] = A[tid] * T.float32(2)


def test_inputs_are_not_modified_and_unwritten_outputs_stay_as_given():
    a, d = np.arange(N, dtype=np.float32), np.arange(N, dtype=np.float32) - 500
    a.setflags(write=False), d.setflags(write=False)
    run = simulate(half_written, [a, d])
    np.testing.assert_array_equal(a, np.arange(N))
    np.testing.assert_array_equal(d, np.arange(N) - 500)
    np.testing.assert_array_equal(run.outputs["A"], a)
    np.testing.assert_array_equal(run.outputs["D"], np.where(np.arange(N) % 2 == 0, 2 * a, d))


def test_a_nan_payload_in_an_unwritten_element_is_kept():
    d = np.full(N, 0x7FC12345, np.uint32).view(np.float32)
    run = simulate(half_written, [np.zeros(N, np.float32), d])
    assert (run.outputs["D"].view(np.uint32)[1::2] == 0x7FC12345).all()


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_launch_writes_in_place_and_returns_nothing(make):
    shape = (128, 128, 64)
    a, b, d = operands(shape)
    arrays = [make(x.copy()) for x in (a, b, d)]
    assert launch(lowered(V1, shape), *arrays) is None
    np.testing.assert_array_equal(np.asarray(arrays[2]), expected(a, b))
    np.testing.assert_array_equal(np.asarray(arrays[0]), a)


@T.prim_func
def doubled(A: T.Buffer((N,), "bfloat16"), D: T.Buffer((N,), "bfloat16")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = A[tid] + A[tid]


def test_launch_with_torch_bfloat16():
    a = torch.arange(N, dtype=torch.bfloat16) / 3
    d = torch.zeros(N, dtype=torch.bfloat16)
    launch(doubled, a, d)
    assert torch.equal(d, a + a)


def test_launch_with_ml_dtypes_bfloat16():
    a = (np.arange(N) / 3).astype(ml_dtypes.bfloat16)
    d = np.zeros(N, ml_dtypes.bfloat16)
    launch(doubled, a, d)
    np.testing.assert_array_equal(d.view(np.uint16), (a + a).view(np.uint16))


def test_launch_with_a_tensor_that_needs_a_gradient():
    a = torch.ones(N, requires_grad=True)
    d = torch.zeros(N)
    launch(half_written, a, d)
    assert torch.equal(d, (torch.arange(N) % 2 == 0) * 2.0)


def test_a_read_only_output_is_refused_and_a_read_only_input_is_not():
    a, d = np.ones(N, np.float32), np.zeros(N, np.float32)
    a.setflags(write=False)
    launch(half_written, a, d)
    assert d[0] == 2
    d = np.zeros(N, np.float32)
    d.setflags(write=False)
    sentence = r"^the kernel writes to D, which is read-only here; pass a writable array$"
    with pytest.raises(BadInput, match=sentence):
        launch(half_written, a, d)


def test_arrays_in_foreign_byte_order_are_refused():
    with pytest.raises(BadInput, match="A must be"):
        simulate(half_written, [np.zeros(N, ">f4"), np.zeros(N, np.float32)])


def test_an_unknown_schedule_is_refused():
    with pytest.raises(BadInput, match="schedule"):
        simulate(half_written, [np.zeros(N, np.float32)] * 2, schedule="fifo")


# -- kernels that cannot go on ----------------------------------------------------------------------------------------
@T.prim_func
def no_arrival(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    pool = T.SMEMPool()
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    D[warp * 32 + lane] = 5
    if warp == 0:
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 2)
    T.ptx.fence.mbarrier_init()
    T.cuda.cta_sync()
    if warp == 1:
        if T.ptx.elect_sync():
            T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
    if warp < 3:
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
    else:
        T.ptx.bar.sync(3, 64)  # rendezvous
    D[warp * 32 + lane] = 6


def line_of(mark):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i + 1 for i, text in enumerate(lines) if text.endswith(f"# {mark}"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_names_who_waits_for_what(schedule):
    run = simulate(no_arrival, [np.zeros(N, np.int32)], schedule)
    (finding,) = [f for f in run.findings if f.code == "deadlock"]
    text = "\n".join([str(finding), *getattr(finding, "details", ())])
    for words in (
        "bar",
        "phase 0",
        "1 of 2 arrivals",
        "0 bytes",
        "bar.sync 3",
        "32 of 64 threads",
        "warp 3",
    ):
        assert words in text, f"{words!r} is missing in\n{text}"
    for mark in ("wait", "rendezvous"):
        assert f"{Path(__file__).name}:{line_of(mark)}" in text
    np.testing.assert_array_equal(run.outputs["D"], np.full(N, 5))


def test_launch_raises_a_deadlock_and_changes_nothing():
    d = np.zeros(N, np.int32)
    with pytest.raises(Deadlock, match="1 of 2 arrivals"):
        launch(no_arrival, d)
    assert not d.any()


@T.prim_func
def too_far(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = 1
    D[tid] = A[tid + 1]  # too far


def test_launch_raises_a_fault_with_its_line_and_changes_nothing():
    d = np.zeros(N, np.int32)
    with pytest.raises(KernelFault) as error:
        launch(too_far, d.copy(), d)
    assert error.value.code == "out-of-bounds"
    assert f":{line_of('too far')}" in str(error.value)
    assert not d.any()


def test_an_unknown_instruction_is_refused_before_anything_runs():
    @T.prim_func
    def kernel(D: T.Buffer((N,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        D[tid] = T.float32(1)
        if tid == 77:
            D[tid] = T.ptx.exp2(D[tid])  # never reached

    d = np.zeros(N, np.float32)
    with pytest.raises(UnsupportedInstruction) as error:
        launch(kernel, d)
    message = str(error.value)
    assert "exp2" in message and f":{line_of('never reached')}" in message
    assert not d.any()


@pytest.mark.parametrize("count", [None, 0, 1, 3])
def test_the_number_of_arrays_is_checked(count):
    arrays = [np.zeros(N, np.float32)] * (count or 0)
    with pytest.raises(BadInput, match="takes 2 arrays"):
        simulate(half_written, arrays)


def test_too_much_shared_memory_is_refused():
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((60000,), "int32")
        pool.commit()
        s[tid] = tid
        D[tid] = s[tid]

    with pytest.raises(BadInput, match="shared memory"):
        simulate(kernel, [np.zeros(N, np.int32)])


def test_shared_memory_starts_with_garbage():
    @T.prim_func
    def kernel(D: T.Buffer((N,), "float32")):
        T.device_entry()
        bx = T.cta_id([2])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "float32")
        D[tid] = s[tid]
        s[tid] = T.float32(1)

    run = simulate(kernel, [np.zeros(N, np.float32)], checks="none")
    assert np.isnan(run.outputs["D"]).all()


def test_warps_that_wait_for_each_other_outside_a_branch():
    """Warp 0 leaves its branch and then does what warp 1 waits for inside of its own."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([4])
        lane = T.lane_id([32])
        if warp == 1:
            T.ptx.bar.sync(1, 64)
            D[warp * 32 + lane] = 1
        else:
            D[warp * 32 + lane] = 2
        if warp == 0:
            T.ptx.bar.sync(1, 64)
            D[warp * 32 + lane] = 3
        T.cuda.cta_sync()
        D[warp * 32 + lane] = D[warp * 32 + lane] + 10

    compiled = lower(kernel)
    for schedule in SCHEDULES:
        run = simulate(compiled, [np.zeros(N, np.int32)], schedule)
        assert errors(run) == []
        np.testing.assert_array_equal(
            run.outputs["D"].reshape(4, 32), np.repeat([[13], [11], [12], [12]], 32, 1)
        )


def test_the_package_exports_what_the_readme_names():
    for name in phaseflip.__all__:
        assert getattr(phaseflip, name) is not None


def test_a_launch_writes_its_result_and_warns_of_what_a_gpu_would_not_notice():
    kernel = find_kernel(f"{CHAPTER}:hgemm_v1").build(128, 128, 64)  # lacks two fences
    a, b, d = operands((128, 128, 64))
    with pytest.warns(FindingWarning) as caught:
        launch(kernel, a, b, d)
    assert {str(w.message).split()[1] for w in caught} == {
        "missing-proxy-fence",
        "missing-tcgen05-fence",
    }
    np.testing.assert_array_equal(d, expected(a, b))
    d[...] = np.nan
    launch(kernel, a, b, d, checks="none")  # warnings are errors in this suite
    np.testing.assert_array_equal(d, expected(a, b))
