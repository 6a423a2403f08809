"""Arithmetic and warp-level instructions of translated kernels, against NumPy."""

import numpy as np
import pytest

from phaseflip.spelling import T
from tests.one_thread import N, inputs, run


# -- arithmetic -------------------------------------------------------------------------------------------------------
@T.prim_func
def unsigned_arithmetic(
    A: T.Buffer((N,), "uint32"),
    W: T.Buffer((N,), "uint64"),
    B: T.Buffer((N,), "uint8"),
    D: T.Buffer((N, 6), "uint32"),
    E: T.Buffer((N, 3), "uint64"),
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid, 0] = A[tid] * T.uint32(2654435761) + A[N - 1 - tid]
    D[tid, 1] = A[tid] - A[N - 1 - tid]
    D[tid, 2] = (A[tid] << T.uint32(7)) ^ (A[tid] >> T.uint32(25))
    D[tid, 3] = ~A[tid] // T.uint32(10)
    D[tid, 4] = A[tid] % (A[N - 1 - tid] | T.uint32(1))
    D[tid, 5] = T.cast(B[tid] + B[N - 1 - tid], "uint32")
    E[tid, 0] = W[tid] * T.uint64(6364136223846793005) + T.uint64(1442695040888963407)
    E[tid, 1] = W[tid] - T.cast(A[tid], "uint64") * W[N - 1 - tid]
    E[tid, 2] = (W[tid] >> T.uint64(33)) // (W[N - 1 - tid] | T.uint64(1)) + ~W[tid]


def test_unsigned_integers_wrap():
    rng = np.random.default_rng(1)
    a = rng.integers(0, 2**32, N, dtype=np.uint32)
    w = rng.integers(0, 2**64, N, dtype=np.uint64)
    b = rng.integers(0, 256, N, dtype=np.uint8)
    d, e = np.zeros((N, 6), np.uint32), np.zeros((N, 3), np.uint64)
    out = run(unsigned_arithmetic, a, w, b, d, e).outputs
    ar, wr = a[::-1], w[::-1]
    d = [
        a * np.uint32(2654435761) + ar,
        a - ar,
        a << 7 ^ a >> 25,
        ~a // 10,
        a % (ar | 1),
        b + b[::-1],
    ]
    e = [
        w * np.uint64(6364136223846793005) + np.uint64(1442695040888963407),
        w - a.astype(np.uint64) * wr,
        (w >> np.uint64(33)) // (wr | np.uint64(1)) + ~w,
    ]
    for column, expected in enumerate(d):
        np.testing.assert_array_equal(out["D"][:, column], expected, err_msg=f"column {column}")
    for column, expected in enumerate(e):
        np.testing.assert_array_equal(out["E"][:, column], expected, err_msg=f"column {column}")


@T.prim_func
def signed_arithmetic(A: T.Buffer((N,), "int32"), D: T.Buffer((N, 10), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid, 0] = T.truncdiv(A[tid], 7) + 10 * T.truncmod(A[tid], 7)
    D[tid, 1] = A[tid] // 7 + 10 * (A[tid] % 7)
    D[tid, 2] = A[tid] // -3 - A[tid] % -3
    D[tid, 3] = (A[tid] >> 2) + (A[tid] << 3)
    D[tid, 4] = (A[tid] << 27) >> 27
    D[tid, 5] = T.max(A[tid], tid) - T.min(A[tid], -3)
    D[tid, 6] = (A[tid] & 12) | (tid ^ A[tid]) & ~5
    D[tid, 7] = T.Select(A[tid] > 0, tid, -tid) + T.cast(A[tid] > 3, "int32")
    D[tid, 8] = T.cast(T.cast(A[tid], "int8") * T.int8(3), "int32")
    D[tid, 9] = T.cast(T.cast(T.cast(A[tid], "uint8"), "int8"), "int32") + T.abs(A[tid] - A[tid])


def test_signed_integers():
    a = np.random.default_rng(2).integers(-40, 40, N, dtype=np.int32)
    out = run(signed_arithmetic, a, np.zeros((N, 10), np.int32)).outputs["D"]
    t = np.arange(N, dtype=np.int32)
    q = np.trunc(a / 7).astype(int)
    expected = [
        q + 10 * (a - 7 * q),
        a // 7 + 10 * (a % 7),
        a // -3 - a % -3,
        (a >> 2) + (a << 3),
        (a << 27) >> 27,
        np.maximum(a, t) - np.minimum(a, -3),
        a & 12 | (t ^ a) & ~5,
        np.where(a > 0, t, -t) + (a > 3),
        a.astype(np.int8) * np.int8(3),
        a,
    ]
    for column, values in enumerate(expected):
        np.testing.assert_array_equal(out[:, column], values, err_msg=f"column {column}")


@T.prim_func
def float_arithmetic(
    F: T.Buffer((N,), "float32"),
    H: T.Buffer((N,), "float16"),
    B: T.Buffer((N,), "bfloat16"),
    OF: T.Buffer((N, 4), "float32"),
    OH: T.Buffer((N, 3), "float16"),
    OB: T.Buffer((N, 3), "bfloat16"),
    OI: T.Buffer((N, 3), "int32"),
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    OF[tid, 0] = F[tid] * T.float32(0.1) + F[N - 1 - tid] / T.float32(3)
    OF[tid, 1] = T.min(F[tid], T.float32(0.5)) - T.max(F[tid], F[N - 1 - tid])
    OF[tid, 2] = T.cast(H[tid], "float32") * F[tid] + T.cast(B[tid], "float32")
    OF[tid, 3] = T.reinterpret("float32", T.reinterpret("uint32", F[tid]) ^ T.uint32(0x80000000))
    OH[tid, 0] = H[tid] * H[N - 1 - tid] + T.float16(1.5)
    OH[tid, 1] = T.cast(F[tid], "float16")
    OH[tid, 2] = T.Select(H[tid] > T.float16(0), T.cast(tid, "float16"), H[tid])
    OB[tid, 0] = B[tid] * B[N - 1 - tid] + T.bfloat16(1.5)
    OB[tid, 1] = T.cast(F[tid], "bfloat16")
    OB[tid, 2] = T.if_then_else(tid % 3 == 0, B[tid], T.cast(H[tid], "bfloat16"))
    OI[tid, 0] = T.cast(F[tid] * T.float32(10), "int32")
    OI[tid, 1] = T.cast(F[tid] < T.float32(0), "int32") + T.cast(H[tid] >= T.float16(0.5), "int32")
    OI[tid, 2] = T.cast(T.reinterpret("uint16", H[tid]), "int32")


def test_floats():
    import ml_dtypes

    bf16 = ml_dtypes.bfloat16
    rng = np.random.default_rng(3)
    f = rng.standard_normal(N).astype(np.float32)
    h, b = rng.standard_normal(N).astype(np.float16), rng.standard_normal(N).astype(bf16)
    zeros = [np.zeros((N, 4), np.float32), np.zeros((N, 3), np.float16), np.zeros((N, 3), bf16)]
    out = run(float_arithmetic, f, h, b, *zeros, np.zeros((N, 3), np.int32)).outputs
    t = np.arange(N)
    expected = {
        "OF": [
            f * np.float32(0.1) + f[::-1] / np.float32(3),
            np.minimum(f, np.float32(0.5)) - np.maximum(f, f[::-1]),
            h.astype(np.float32) * f + b.astype(np.float32),
            -f,
        ],
        "OH": [
            h * h[::-1] + np.float16(1.5),
            f.astype(np.float16),
            np.where(h > 0, t.astype(np.float16), h),
        ],
        "OB": [
            b * b[::-1] + bf16(1.5),
            f.astype(bf16),
            np.where(t % 3 == 0, b, h.astype(bf16)),
        ],
        "OI": [
            np.trunc(f * np.float32(10)).astype(np.int32),
            (f < 0).astype(int) + (h >= 0.5),
            h.view(np.uint16),
        ],
    }
    for name, columns in expected.items():
        for column, values in enumerate(columns):
            got = out[name][:, column]
            np.testing.assert_array_equal(
                got.astype(np.float64), values.astype(np.float64), err_msg=f"{name} {column}"
            )


@T.prim_func
def uniform_values(
    F: T.Buffer((4,), "float32"), A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_local((4,), "int32")
    for i in T.serial(4):
        s[i] = i * 5
    k: T.int32 = T.cast(F[0], "int32")
    D[tid] = A[k] + A[T.cast(F[1], "int32") + tid % 2] + s[T.cast(F[2], "int32")]


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_an_index_may_come_from_a_uniform_float(schedule):
    a, d = inputs()
    out = run(uniform_values, np.array([3.9, 17, 2.5, 0], np.float32), a, d, schedule=schedule)
    np.testing.assert_array_equal(out.outputs["D"], a[3] + a[17 + np.arange(N) % 2] + 10)


@T.prim_func
def one_thread(
    F: T.Buffer((4,), "float32"), A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")
):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_local((4,), "int32")
    for i in T.serial(4):
        s[i] = i * 5 + A[tid]
    if tid == 70:
        x: T.float32 = F[tid - 68]
        D[tid] = s[T.cast(x, "int32")] + A[T.cast(F[tid - 70] + x, "int32")]
    if tid == 71:
        for i in T.serial(A[tid] * A[tid] % 4 + 2):
            D[tid] = D[tid] + s[i % 4]


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_a_group_of_one_thread(schedule):
    a, d = inputs()
    f = np.array([1.5, 0, 2.75, 0], np.float32)
    out = run(one_thread, f, a, d, schedule=schedule).outputs["D"]
    expected = d.copy()
    expected[70] = 10 + a[70] + a[4]
    expected[71] += sum(i % 4 * 5 + a[71] for i in range(a[71] * a[71] % 4 + 2))
    np.testing.assert_array_equal(out, expected)


@T.prim_func
def signed_zeros(F: T.Buffer((N,), "float32"), D: T.Buffer((N,), "float32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.float32 = T.float32(0)
    if tid % 2 == 0:
        x = T.float32(-0.0)
    D[tid] = x


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_the_sign_of_zero_survives_a_branch(schedule):
    zeros = np.zeros(N, np.float32)
    out = run(signed_zeros, zeros, zeros + 1, schedule=schedule).outputs["D"]
    np.testing.assert_array_equal(np.signbit(out), np.arange(N) % 2 == 0)


# -- warp-level instructions ------------------------------------------------------------------------------------------
@T.prim_func
def shuffles(A: T.Buffer((N,), "int32"), D: T.Buffer((N, 4), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid, 0] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), A[tid], 3, 32)
    D[tid, 1] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), A[tid], (tid + 5) % 32, 32)
    D[tid, 2] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), A[tid], 9, 8)
    D[tid, 3] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), A[tid] * 0 + 4, tid % 32, 32)


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_shuffles(schedule):
    a, _ = inputs()
    out = run(shuffles, a, np.zeros((N, 4), np.int32), schedule=schedule).outputs["D"]
    t = np.arange(N)
    warp = t // 32 * 32
    expected = [a[warp + 3], a[warp + (t + 5) % 32], a[t // 8 * 8 + 1], np.full(N, 4)]
    for column, values in enumerate(expected):
        np.testing.assert_array_equal(out[:, column], values, err_msg=f"column {column}")


@T.prim_func
def shuffle_in_a_part(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    if tid >= 16 and tid < 48:
        mask = T.if_then_else(tid < 32, T.uint32(0xFFFF0000), T.uint32(0xFFFF))
        D[tid] = T.cuda.__shfl_sync(mask, A[tid], 20, 32)


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_a_shuffle_among_lanes_that_do_not_start_a_warp(schedule):
    """Lanes 16 to 31 of warp 0 read its lane 20; lanes 0 to 15 of warp 1 read a lane that is not there: their own value."""
    a, d = inputs()
    out = run(shuffle_in_a_part, a, d, schedule=schedule).outputs["D"]
    expected = d.copy()
    expected[16:32], expected[32:48] = a[20], a[32:48]
    np.testing.assert_array_equal(out, expected)


@T.prim_func
def elections(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    if T.ptx.elect_sync():
        D[tid] = 1
    if tid >= 32:
        if T.ptx.elect_sync():
            D[tid] = 2


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_elect_chooses_the_first_lane_of_each_warp(schedule):
    a, d = inputs()
    out = run(elections, a, d, schedule=schedule).outputs["D"]
    expected = d.copy()
    expected[::32] = [1, 2, 2, 2]
    np.testing.assert_array_equal(out, expected)
