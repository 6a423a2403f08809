"""Loops run as one operation give the bits and the counters of loops run one iteration at a time."""

import numpy as np
import pytest
from tvm.script.tirx import tile as Tx

from kernels.hgemm_v1 import KERNEL as V1
from kernels.hgemm_v2 import KERNEL as V2
from kernels.hgemm_v3 import KERNEL as V3
from phaseflip import lower, simulate
from phaseflip.spelling import T
from phaseflip.translate.translator import translate

N = 128


def run(lowered, arrays, schedule, vectorise):
    lowered.__dict__["program"] = translate(lowered.device, vectorise=vectorise)
    return simulate(lowered, arrays, schedule)


def both(kernel, arrays, schedule="in-order"):
    """Outputs after asserting that the two paths agree in bits, counters and findings."""
    lowered = lower(kernel)
    fast, plain = (run(lowered, arrays, schedule, vectorise) for vectorise in (True, False))
    assert fast.counters == plain.counters
    assert [str(f) for f in fast.findings] == [str(f) for f in plain.findings]
    for name, values in plain.outputs.items():
        np.testing.assert_array_equal(
            fast.outputs[name].view(np.uint8), values.view(np.uint8), err_msg=name
        )
    return fast.outputs


def vectorised(kernel):
    """How many loops of the kernel run as one operation."""
    lowered = lower(kernel)
    fast, plain = (translate(lowered.device, vectorise=v).source for v in (True, False))
    return plain.count(" in range(") - fast.count(" in range(")


@pytest.mark.parametrize(
    ("kernel", "shape"), [(V1, (128, 128, 64)), (V2, (128, 128, 192)), (V3, (256, 128, 128))]
)
@pytest.mark.parametrize("schedule", ["in-order", "random:3"])
def test_gemm_kernels(kernel, shape, schedule):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((n, k)).astype(np.float16)
    func = kernel.build(m, n, k)
    assert vectorised(func) == 4
    both(func, [a, b, np.zeros((m, n), np.float16)], schedule)


@T.prim_func
def copy_by_some(A: T.Buffer((N, 64), "float16"), D: T.Buffer((N, 64), "float16")):
    """Groups that are no whole warps copy rows to shared memory and from registers to global memory."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_shared((N, 64), "float16")
    r = T.alloc_local((64,), "float16")
    if tid % 3 != 1:
        Tx.copy(s[tid, :], A[tid, :])
        Tx.copy(r[:], s[tid, :])
        Tx.copy(D[N - 1 - tid, :], r[:])


@pytest.mark.parametrize("schedule", ["in-order", "random:3"])
def test_copies_by_scattered_lanes(schedule):
    a = np.arange(N * 64, dtype=np.float16).reshape(N, 64)
    d = np.full((N, 64), -1, np.float16)
    out = both(copy_by_some, [a, d], schedule)["D"]
    rows = np.arange(N) % 3 != 1
    expected = d.copy()
    expected[::-1][rows] = a[rows]
    np.testing.assert_array_equal(out, expected)


@T.prim_func
def registers_of_each_iteration(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N, 4), "int32")):
    """The copies go through registers of their own, which keep what each has loaded."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_shared((N, 4), "int32")
    r = T.alloc_local((4,), "int32")
    for i in T.serial(4):
        T.ptx.ld(A.ptr_to([tid, i]), "int32", "b32", dst=r.ptr_to([i]))
        T.ptx.st(s.ptr_to([tid, i]), src=r.ptr_to([i]), ptx_type="b32", space="shared")
    for i in T.serial(4):
        D[tid, i] = r[i] + s[tid, i]


def test_copies_by_registers_of_their_own_leave_each_its_value():
    a = np.arange(N * 4, dtype=np.int32).reshape(N, 4)
    out = both(registers_of_each_iteration, [a, np.zeros_like(a)], "in-order")["D"]
    np.testing.assert_array_equal(out, 2 * a)


@T.prim_func
def same_place(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N, 4), "int32")):
    """Several iterations write one place: the last one wins."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_shared((N, 4), "int32")
    r = T.alloc_local((4,), "int32")
    q = T.alloc_local((4,), "int32")
    for i in T.serial(4):
        s[tid, i] = -1
    for i in T.serial(4):
        T.ptx.ld(A.ptr_to([tid, i]), "int32", "b32", dst=r.ptr_to([0]))
        T.ptx.st(s.ptr_to([tid, i // 2]), src=r.ptr_to([0]), ptx_type="b32", space="shared")
    for i in T.serial(4):
        q[i] = s[tid, i]
    q[3] = r[0]
    for i in T.serial(4):
        T.ptx.st(D.ptr_to([tid, i]), src=q.ptr_to([i]), ptx_type="b32", space="global")
    for i in T.serial(2):
        T.ptx.st(D.ptr_to([tid, 2]), src=q.ptr_to([i]), ptx_type="b32", space="global")


@pytest.mark.parametrize("schedule", ["in-order", "random:3"])
def test_the_last_iteration_wins(schedule):
    a = np.arange(N * 4, dtype=np.int32).reshape(N, 4)
    out = both(same_place, [a, np.zeros_like(a)], schedule)["D"]
    np.testing.assert_array_equal(out, a[:, [1, 3, 3, 3]])


@T.prim_func
def dependent(A: T.Buffer((N, 8), "int32"), D: T.Buffer((N, 8), "int32")):
    """An iteration reads what the one before it wrote; such a loop has to stay a loop."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_shared((N,), "int32")
    r = T.alloc_local((1,), "int32")
    for i in T.serial(7):
        T.ptx.ld(D.ptr_to([tid, i]), "int32", "b32", dst=r.ptr_to([0]))
        T.ptx.st(D.ptr_to([tid, i + 1]), src=r.ptr_to([0]), ptx_type="b32", space="global")
    x: T.int32 = 0
    for i in T.serial(8):
        x = x * 3 + A[tid, i]
    D[tid, 7] = x + D[tid, 7]


def test_loops_with_dependences_stay_loops():
    assert vectorised(dependent) == 0
    a = np.arange(N * 8, dtype=np.int32).reshape(N, 8) % 5
    d = np.arange(N * 8, dtype=np.int32).reshape(N, 8)
    out = both(dependent, [a, d])["D"]
    np.testing.assert_array_equal(out[:, :7], np.repeat(d[:, :1], 7, 1))
    np.testing.assert_array_equal(out[:, 7], d[:, 0] + a @ 3 ** np.arange(7, -1, -1))


@T.prim_func
def casts(
    A: T.Buffer((N, 16), "float32"), H: T.Buffer((N, 16), "float16"), B: T.Buffer((N, 16), "bfloat16"),
    F: T.Buffer((N, 16), "float32"),
):  # fmt: skip
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    r = T.alloc_local((16,), "float32")
    h = T.alloc_local((16,), "float16")
    b = T.alloc_local((16,), "bfloat16")
    f = T.alloc_local((16,), "float32")
    Tx.copy(r[:], A[tid, :])
    Tx.cast(h[:], r[:])
    Tx.cast(b[:], r[:])
    Tx.cast(f[:], h[:])
    Tx.copy(H[tid, :], h[:])
    Tx.copy(B[tid, :], b[:])
    Tx.copy(F[tid, :], f[:])


def test_casts_round_to_nearest_even():
    import ml_dtypes

    a = np.random.default_rng(4).standard_normal((N, 16)).astype(np.float32) * 300
    a[0, :6] = [65519, 65520, -65521, np.inf, -0.0, 3e-8]
    outs = [np.zeros((N, 16), t) for t in (np.float16, ml_dtypes.bfloat16, np.float32)]
    out = both(casts, [a, *outs])
    with np.errstate(over="ignore"):
        half = a.astype(np.float16)
    np.testing.assert_array_equal(out["H"].view(np.uint16), half.view(np.uint16))
    np.testing.assert_array_equal(
        out["B"].view(np.uint16), a.astype(ml_dtypes.bfloat16).view(np.uint16)
    )
    np.testing.assert_array_equal(out["F"], half.astype(np.float32))


def test_a_bad_address_in_a_loop_is_the_same_finding():
    @T.prim_func
    def reads_too_far(A: T.Buffer((N, 8), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N, 8), "int32")
        r = T.alloc_local((1,), "int32")
        for i in T.serial(8):
            T.ptx.ld(A.ptr_to([tid, i + 1]), "int32", "b32", dst=r.ptr_to([0]))
            T.ptx.st(s.ptr_to([tid, i]), src=r.ptr_to([0]), ptx_type="b32", space="shared")

    lowered = lower(reads_too_far)
    arrays = [np.zeros((N, 8), np.int32), np.zeros(N, np.int32)]
    codes = [[f.code for f in run(lowered, arrays, "in-order", v).findings] for v in (True, False)]
    assert codes == [["out-of-bounds"]] * 2


@T.prim_func
def cast_by_lane(A: T.Buffer((N, 8), "float32"), D: T.Buffer((N, 8), "float16")):
    """The registers that are converted differ among the lanes."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    r = T.alloc_local((8,), "float32")
    h = T.alloc_local((8,), "float16")
    for i in T.serial(8):
        r[i] = A[tid, i]
        h[i] = T.float16(0)
    for i in T.serial(2):
        T.cuda.func_call(
            "tvm_builtin_cast_float32x2_float16x2",
            h.ptr_to([tid % 2 * 4 + i * 2]),
            r.ptr_to([tid % 2 * 4 + i * 2]),
            source_code="",
        )
    for i in T.serial(8):
        D[tid, i] = h[i]


@pytest.mark.parametrize("schedule", ["in-order", "random:3"])
def test_casts_of_registers_that_differ_by_lane(schedule):
    a = np.arange(N * 8, dtype=np.float32).reshape(N, 8)
    out = both(cast_by_lane, [a, np.ones((N, 8), np.float16)], schedule)["D"]
    chosen = np.arange(8) // 4 == np.arange(N)[:, None] % 2
    np.testing.assert_array_equal(out, np.where(chosen, a, 0).astype(np.float16))
