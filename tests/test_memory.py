"""Global and shared memory: bounds, alignment and who is blamed, through TIRx kernels."""

import re

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.spelling import T

N = 128
VECTOR_BYTES = {"": 4, "v2": 8, "v4": 16}


def marked_line(mark):
    with open(__file__, encoding="utf-8") as file:
        return [
            i + 1 for i, text in enumerate(file.read().splitlines()) if text.endswith(f"# {mark}")
        ][0]


def fault(kernel, *arrays, schedule="in-order"):
    """The only finding of a run."""
    (finding,) = simulate(kernel, arrays, schedule, checks="memory").findings
    return finding


@T.prim_func
def indirect_read(
    A: T.Buffer((N,), "int32"), J: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = A[J[tid]]  # read


@T.prim_func
def indirect_write(
    A: T.Buffer((N,), "int32"), J: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[J[tid]] = A[tid]  # write


def arrays(thread=0, index=0):
    i = np.arange(N, dtype=np.int32)
    i[thread] = index
    return np.arange(N, dtype=np.int32) * 3, i, np.zeros(N, np.int32)


@pytest.mark.parametrize("schedule", ["in-order", "random:1"])
@pytest.mark.parametrize("index", [-1, -N, N, N + 5, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("thread", [0, 77, 127])
def test_an_index_outside_a_buffer(thread, index, schedule):
    for kernel, mark, name in ((indirect_read, "read", "A"), (indirect_write, "write", "D")):
        finding = fault(kernel, *arrays(thread, index), schedule=schedule)
        assert finding.code == "out-of-bounds"
        assert (finding.file, finding.line) == (__file__, marked_line(mark))
        if thread != 0:
            assert re.search(rf"byte {4 * index} of \D*\b{name}\b", finding.message)


@pytest.mark.parametrize("index", [-1, N])
def test_the_buffer_of_a_bad_index_of_the_first_lane_is_named(index):
    finding = fault(indirect_write, *arrays(0, index))
    assert re.search(rf"byte {4 * index} of \D*\bD\b", finding.message)


def test_indices_within_bounds_are_silent():
    a, i, d = arrays()
    i[:] = i[::-1]
    run = simulate(indirect_read, [a, i, d])
    assert run.findings == []
    np.testing.assert_array_equal(run.outputs["D"], a[::-1])


def shared_kernel(offset):
    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        s[tid] = A[tid]
        T.cuda.cta_sync()
        D[tid] = s[A[tid] + offset]  # shared

    return kernel


@pytest.mark.parametrize("offset", [N, 10**6, -(10**6)])
def test_an_index_outside_shared_memory(offset):
    finding = fault(shared_kernel(offset), np.arange(N, dtype=np.int32), np.zeros(N, np.int32))
    assert finding.code == "out-of-bounds"
    assert finding.line == marked_line("shared")


def vector_kernel(vec, shift, store):
    """Thread t moves its vector from A to D; `shift` elements off on one side."""
    width = VECTOR_BYTES[vec] // 4
    from_shift, to_shift = (0, shift) if store else (shift, 0)

    @T.prim_func
    def kernel(A: T.Buffer((1024,), "int32"), D: T.Buffer((1024,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        T.ptx.ld(
            A.ptr_to([tid * width + from_shift]), "int32", "b32", dst=r.ptr_to([0]), vec=vec
        )  # load
        T.ptx.st(
            D.ptr_to([tid * width + to_shift]),
            src=r.ptr_to([0]),
            vec=vec,
            ptx_type="b32",
            space="global",
        )  # store

    return lower(kernel)


@pytest.mark.parametrize("vec", VECTOR_BYTES)
@pytest.mark.parametrize("shift", [0, 1, 2, 4])
@pytest.mark.parametrize("store", [False, True])
def test_vector_moves_need_their_own_alignment(vec, shift, store):
    a, d = np.arange(1024, dtype=np.int32), np.full(1024, -1, np.int32)
    run = simulate(vector_kernel(vec, shift, store), [a, d])
    width = VECTOR_BYTES[vec] // 4
    if shift % width:
        (finding,) = run.findings
        assert finding.code == "misaligned-access"
        assert f"{4 * width} bytes" in finding.message
        return
    assert run.findings == []
    expected = d.copy()
    start = (0, shift) if store else (shift, 0)
    expected[start[1] : start[1] + N * width] = a[start[0] : start[0] + N * width]
    np.testing.assert_array_equal(run.outputs["D"], expected)


@T.prim_func
def scalar_loads(A: T.Buffer((N,), "int32"), D: T.Buffer((N, 3), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_shared((N,), "int32")
    s[tid] = A[tid] + 1
    T.cuda.cta_sync()
    D[tid, 0] = T.ptx.ld(A.ptr_to([N - 1 - tid]), "int32", "s32")
    D[tid, 1] = T.ptx.ld(s.ptr_to([N - 1 - tid]), "int32", "s32", space="shared")
    D[tid, 2] = T.ptx.ld(A.ptr_to([5]), "int32", "s32") + T.ptx.ld(A.ptr_to([tid]), "int32", "s32")


@pytest.mark.parametrize("schedule", ["in-order", "random:1"])
def test_loads_that_give_a_value(schedule):
    a = np.arange(-60, N - 60, dtype=np.int32)
    run = simulate(scalar_loads, [a, np.zeros((N, 3), np.int32)], schedule)
    assert run.findings == []
    expected = np.stack([a[::-1], a[::-1] + 1, a[5] + a], 1)
    np.testing.assert_array_equal(run.outputs["D"], expected)
    assert run.counters["ld.global"] == 4 * 4 and run.counters["ld.shared"] == 4


def local_kernel(offset):
    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        q = T.alloc_local((4,), "int32")
        for i in T.serial(4):
            r[i] = i
            q[i] = 100 + i
        D[tid] = r[A[tid] + offset] + q[A[tid] % 4]  # local

    return kernel


@pytest.mark.parametrize("offset", [-1, 4, 500, -500])
def test_an_index_outside_a_local_array(offset):
    finding = fault(local_kernel(offset), np.zeros(N, np.int32), np.zeros(N, np.int32))
    assert finding.code == "out-of-bounds"
    assert finding.line == marked_line("local")


@T.prim_func
def bytes_kernel(
    A: T.Buffer((N,), "uint8"),
    B: T.Buffer((N,), "bool"),
    D: T.Buffer((N,), "int8"),
    E: T.Buffer((N,), "bool"),
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = T.cast(A[tid], "int8")
    E[tid] = A[tid] > T.uint8(100) and not B[N - 1 - tid]


def test_bytes_and_booleans():
    a = np.arange(N, dtype=np.uint8) * 2
    b = np.arange(N) % 3 == 0
    run = simulate(bytes_kernel, [a, b, np.zeros(N, np.int8), np.zeros(N, bool)])
    assert run.findings == []
    np.testing.assert_array_equal(run.outputs["D"], a.astype(np.int8))
    np.testing.assert_array_equal(run.outputs["E"], (a > 100) & ~b[::-1])
