"""Guarded reads, registers, local and shared arrays of translated kernels, against a plain Python model of one thread."""

import math

import pytest

from phaseflip.spelling import T
from tests.one_thread import SCHEDULES, N, check


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
            T.ptx.barrier.sync(1, 128)
            T.ptx.barrier.sync(2, 128)
        D[warp * 32 + lane] = 7
    else:
        total: T.int32 = 0
        for _k in T.serial(3):
            T.ptx.barrier.sync(1, 128)
            total += s[(warp - 2) * 32 + 31 - lane]
            T.ptx.barrier.sync(2, 128)
        D[warp * 32 + lane] = total


def roles_model(t, a):
    return 7 if t < 64 else 3 * a[(t - 64) // 32 * 32 + 31 - t % 32] + 3


CASES = [
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
