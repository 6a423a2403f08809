"""Kernels with other parameters than A, B and D, for the command line: factories (M, N, K)."""

from tvm.script import tirx as T


def scaled(M, N, K):
    """Y[:n] = X[:n] * alpha, and a count in bytes that has the value of the poison."""

    @T.prim_func
    def kernel(
        X: T.Buffer((M,), "float32"),
        alpha: T.float32,
        n: T.int32,
        Y: T.Buffer((M,), "float32"),
        count: T.Buffer((M,), "uint8"),
    ):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([M])
        count[tid] = T.uint8(0x97)
        if tid < n:
            Y[tid] = X[tid] * alpha

    return kernel


def accumulate(M, N, K):
    """D += A: D is read, too."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "int32"), D: T.Buffer((M, K), "int32"), sums: T.Buffer((M,), "int32")
    ):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([M])
        sums[tid] = 0
        for k in range(K):
            D[tid, k] = D[tid, k] + A[tid, k]
            sums[tid] = sums[tid] + A[tid, k]

    return kernel


def silent(M, N, K):
    """Writes nothing."""

    @T.prim_func
    def kernel(A: T.Buffer((M,), "float32")):
        T.device_entry()
        T.cta_id([1])
        T.thread_id([M])

    return kernel


def dot(M, N, K):
    """D = A B^T by one thread for each element, in float32 for D, from bfloat16."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "bfloat16"),
        B: T.Buffer((N, K), "bfloat16"),
        D: T.Buffer((M, N), "float32"),
    ):
        T.device_entry()
        row = T.cta_id([M])
        tid = T.thread_id([N])
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0)
        for k in range(K):
            total[0] = total[0] + T.cast(A[row, k], "float32") * T.cast(B[tid, k], "float32")
        D[row, tid] = total[0]

    return kernel
