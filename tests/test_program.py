"""Control flow and divergence of translated kernels, against a plain Python model of one thread.

Every kernel has one CTA; thread t reads A and writes D[t]. Its model gives D[t] for one t.
"""

import functools
import math

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import lower, simulate

N = 128
SCHEDULES = ["in-order", "eager", "lazy", "random:1"]


lowered = functools.cache(lower)


def run(kernel, *arrays, schedule="in-order"):
    result = simulate(lowered(kernel), arrays, schedule)
    assert result.findings == []
    return result


def inputs():
    rng = np.random.default_rng(5)
    return rng.integers(-20, 20, N, dtype=np.int32), np.full(N, -1, np.int32)


def check(kernel, model, schedule):
    a, d = inputs()
    expected = [model(t, a.tolist()) for t in range(N)]
    assert run(kernel, a, d, schedule=schedule).outputs["D"].tolist() == expected


# -- branches ---------------------------------------------------------------------------------------------------------
@T.prim_func
def nested_branches(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32 = 5
    if tid % 2 == 0:
        if A[tid] > 0:
            x = A[tid] + 1
        if tid > 64:
            x += 1000
    elif A[tid] > 3:
        x = 7
    else:
        if tid % 3 == 0:
            x = x * A[tid]
    D[tid] = x * 2


def nested_branches_model(t, a):
    x = 5
    if t % 2 == 0:
        if a[t] > 0:
            x = a[t] + 1
        if t > 64:
            x += 1000
    elif a[t] > 3:
        x = 7
    else:
        if t % 3 == 0:
            x = x * a[t]
    return x * 2


@T.prim_func
def warp_branches(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    x: T.int32 = 0
    if warp == 0:
        x = 10
    else:
        if warp == 2:
            x = A[warp * 32 + lane]
        else:
            if lane < 5:
                x = 30 + warp
    D[warp * 32 + lane] = x + warp


def warp_branches_model(t, a):
    warp, lane = t // 32, t % 32
    if warp == 0:
        x = 10
    elif warp == 2:
        x = a[t]
    else:
        x = 30 + warp if lane < 5 else 0
    return x + warp


@T.prim_func
def one_side_only(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    if A[tid] > 100:
        D[tid] = 1
    if A[tid] < 100:
        D[tid] = 2
    if tid == 77:
        D[tid] = 3


@T.prim_func
def early_exit(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = 1
    if tid % 4 == 3:
        if A[tid] < 0:
            T.thread_return()
        D[tid] = 2
    if tid > 100:
        T.thread_return()
    D[tid] = D[tid] + 10


def early_exit_model(t, a):
    if t % 4 == 3 and a[t] < 0:
        return 1
    value = 2 if t % 4 == 3 else 1
    return value if t > 100 else value + 10


# -- loops ------------------------------------------------------------------------------------------------------------
@T.prim_func
def trip_counts_by_lane(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32 = 0
    for i in T.serial(A[tid]):
        x += i
    for i in T.serial(tid % 3, tid % 3 + 4):
        x += i * 100
    for i in T.serial(0, 10, step=3):
        for j in T.serial(i):
            x += j * 10000
    D[tid] = x


def trip_counts_model(t, a):
    x = sum(range(a[t])) + 100 * sum(range(t % 3, t % 3 + 4))
    return x + 10000 * sum(j for i in range(0, 10, 3) for j in range(i))


@T.prim_func
def break_and_continue(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32 = 0
    n: T.int32 = 0
    while n < tid % 9:
        n += 1
        if n == 3:
            continue
        if n * 2 == A[tid]:
            break
        x += 100
    for i in T.serial(6):
        if i == tid % 5:
            continue
        for j in T.serial(4):
            if j > i:
                break
            x += 1
        if i > A[tid]:
            break
        x += 7
    D[tid] = x * 10 + n


def break_and_continue_model(t, a):
    x = n = 0
    while n < t % 9:
        n += 1
        if n == 3:
            continue
        if n * 2 == a[t]:
            break
        x += 100
    for i in range(6):
        if i == t % 5:
            continue
        for j in range(4):
            if j > i:
                break
            x += 1
        if i > a[t]:
            break
        x += 7
    return x * 10 + n


@T.prim_func
def while_true(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 0
    while T.bool(True):
        n += 3
        if n > tid:
            break
    D[tid] = n


@T.prim_func
def bound_changed_in_the_body(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 10
    x: T.int32 = 0
    for _i in T.serial(n):
        n = n - 1
        x += 1
    D[tid] = x


@T.prim_func
def return_in_a_loop(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = 0
    for i in T.serial(5):
        if A[tid] + i > 8:
            D[tid] = 500 + i
            T.thread_return()
        D[tid] = D[tid] + 1


def return_in_a_loop_model(t, a):
    for i in range(5):
        if a[t] + i > 8:
            return 500 + i
    return 5


@T.prim_func
def collatz(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32 = tid + 1
    steps: T.int32 = 0
    while x != 1:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    D[tid] = steps


def collatz_model(t, a):
    x, steps = t + 1, 0
    while x != 1:
        x = x // 2 if x % 2 == 0 else 3 * x + 1
        steps += 1
    return steps


# -- guarded reads ----------------------------------------------------------------------------------------------------
@T.prim_func
def lazy_select(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[tid] = A[tid] + T.if_then_else(tid > 0, A[tid - 1], 100) * T.if_then_else(
        tid + 1 < N, A[tid + 1], 3
    )


def lazy_select_model(t, a):
    return a[t] + (a[t - 1] if t > 0 else 100) * (a[t + 1] if t + 1 < N else 3)


@T.prim_func
def nested_lazy_selects(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    D[T.if_then_else(A[tid] > 50, A[tid], tid)] = T.if_then_else(
        A[tid] >= 0, T.if_then_else(A[A[tid]] >= 0, A[A[A[tid]]], -5), -6
    )


def nested_lazy_selects_model(t, a):
    if a[t] < 0:
        return -6
    return a[a[a[t]]] if a[a[t]] >= 0 else -5


@T.prim_func
def guards(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32 = 0
    if A[tid] >= 0 and A[A[tid]] > 3:
        x = 1
    if A[tid] < 0 or A[A[tid]] > 3:
        x += 2
    if not (A[tid] >= 0 and A[A[tid]] > 3 and A[A[tid] + 1] > 0):
        x += 4
    i: T.int32 = A[tid]
    while i >= 0 and A[i] < 10:
        i -= 1
    D[tid] = x * 1000 + i


def guards_model(t, a):
    x = 1 if a[t] >= 0 and a[a[t]] > 3 else 0
    x += 2 if a[t] < 0 or a[a[t]] > 3 else 0
    x += 0 if a[t] >= 0 and a[a[t]] > 3 and a[a[t] + 1] > 0 else 4
    i = a[t]
    while i >= 0 and a[i] < 10:
        i -= 1
    return x * 1000 + i


@T.prim_func
def guarded_division(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = A[0] - A[0]
    x: T.int32 = T.if_then_else(n != 0, 7 // n, 9) + T.if_then_else(n != 0, 7 % n, 9)
    y: T.int32 = T.if_then_else(n > 0, T.shift_left(1, n - 1), 50)
    D[tid] = T.if_then_else(A[tid] != 0, T.truncdiv(100, A[tid]), 0) + x + y


def guarded_division_model(t, a):
    return (math.trunc(100 / a[t]) if a[t] else 0) + 68


# -- registers and local arrays ---------------------------------------------------------------------------------------
@T.prim_func
def local_arrays(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    squares = T.alloc_local((8,), "int32")
    table = T.alloc_local((4, 4), "int32")
    fixed = T.alloc_local((2,), "int32")
    for i in T.serial(8):
        squares[i] = i * i + tid
    for i, j in T.grid(4, 4):
        table[i, j] = i * 10 + j
    squares[tid % 8] = squares[tid % 8] * 2
    fixed[0] = tid
    fixed[1] = A[tid]
    if A[tid] > 0:
        fixed[0] = fixed[1]
        squares[3] = 9
    D[tid] = squares[(tid + 1) % 8] + squares[3] * 100 + table[tid % 4, tid // 4 % 4] + fixed[0]


def local_arrays_model(t, a):
    squares = [i * i + t for i in range(8)]
    squares[t % 8] *= 2
    fixed = t
    if a[t] > 0:
        fixed, squares[3] = a[t], 9
    return squares[(t + 1) % 8] + squares[3] * 100 + t % 4 * 10 + t // 4 % 4 + fixed


@T.prim_func
def merged_values(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    """Values of both kinds, uniform and by lane, meet after branches, inside a loop."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    x: T.int32 = 1
    y: T.int32 = 2
    u: T.uint64 = T.uint64(3)
    b: T.bool = T.bool(False)
    for i in T.serial(3):
        if tid % 4 == i:
            x = y
            u = T.cast(A[0] - 100, "uint64")
            b = T.bool(True)
        else:
            y = y + A[tid]
            u = u + T.uint64(1)
        if b:
            x += 1
        if u > T.uint64(9223372036854775807):
            y += 10000
    D[tid] = x * 7 + y + T.cast(u // T.uint64(3) % T.uint64(1000), "int32")


def merged_values_model(t, a):
    x, y, u, b = 1, 2, 3, False
    for i in range(3):
        if t % 4 == i:
            x, u, b = y, 2**64 + a[0] - 100, True
        else:
            y += a[t]
            u += 1
        if b:
            x += 1
        if u > 9223372036854775807:
            y += 10000
    return x * 7 + y + u // 3 % 1000


@T.prim_func
def shared_neighbour(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    s = T.alloc_shared((N,), "int32")
    s[tid] = A[tid]
    T.cuda.cta_sync()
    for _k in T.serial(3):
        x: T.int32 = s[(tid + 1) % N] + s[(tid + 64) % N]
        T.cuda.cta_sync()
        if tid % 32 < 20:
            s[tid] = x
        T.cuda.cta_sync()
    D[tid] = s[tid]


def shared_neighbour_model(t, a):
    s = list(a)
    for _ in range(3):
        s = [s[(i + 1) % N] + s[(i + 64) % N] if i % 32 < 20 else s[i] for i in range(N)]
    return s[t]


@T.prim_func
def roles(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    """Two roles of whole warps that meet at a barrier inside their own branches."""
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    s = T.alloc_shared((64,), "int32")
    if warp < 2:
        for k in T.serial(3):
            s[warp * 32 + lane] = A[warp * 32 + lane] + k
            T.ptx.bar.sync(1, 128)
            T.ptx.bar.sync(2, 128)
        D[warp * 32 + lane] = 7
    else:
        total: T.int32 = 0
        for _k in T.serial(3):
            T.ptx.bar.sync(1, 128)
            total += s[(warp - 2) * 32 + 31 - lane]
            T.ptx.bar.sync(2, 128)
        D[warp * 32 + lane] = total


def roles_model(t, a):
    return 7 if t < 64 else 3 * a[(t - 64) // 32 * 32 + 31 - t % 32] + 3


CASES = [
    (nested_branches, nested_branches_model),
    (warp_branches, warp_branches_model),
    (one_side_only, lambda t, a: 3 if t == 77 else 2),
    (early_exit, early_exit_model),
    (trip_counts_by_lane, trip_counts_model),
    (break_and_continue, break_and_continue_model),
    (while_true, lambda t, a: t // 3 * 3 + 3),
    (bound_changed_in_the_body, lambda t, a: 5),
    (return_in_a_loop, return_in_a_loop_model),
    (collatz, collatz_model),
    (lazy_select, lazy_select_model),
    (nested_lazy_selects, nested_lazy_selects_model),
    (guards, guards_model),
    (guarded_division, guarded_division_model),
    (local_arrays, local_arrays_model),
    (merged_values, merged_values_model),
    (shared_neighbour, shared_neighbour_model),
    (roles, roles_model),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("kernel", "model"), CASES, ids=[k.attrs["global_symbol"] for k, _ in CASES]
)
def test_kernel_agrees_with_the_model_of_one_thread(kernel, model, schedule):
    check(kernel, model, schedule)


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
        D[tid] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), A[tid], 20, 32)


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
    if tid % 32 > 6:
        if T.ptx.elect_sync():
            D[tid] = 2


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
def test_elect_chooses_the_first_lane_present(schedule):
    a, d = inputs()
    out = run(elections, a, d, schedule=schedule).outputs["D"]
    expected = d.copy()
    expected[::32], expected[7::32] = 1, 2
    np.testing.assert_array_equal(out, expected)
