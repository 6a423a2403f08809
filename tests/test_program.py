"""Control flow and divergence of translated kernels, against a plain Python model of one thread."""

import pytest

from phaseflip.spelling import T
from tests.one_thread import SCHEDULES, N, check


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
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("kernel", "model"), CASES, ids=[k.attrs["global_symbol"] for k, _ in CASES]
)
def test_kernel_agrees_with_the_model_of_one_thread(kernel, model, schedule):
    check(kernel, model, schedule)
