"""ld and st of 256 bits: v8.b32 and v4.b64 of global memory."""

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import UnsupportedInstruction, simulate


def load(vec, ptx_type, dtype, count, first=0):
    @T.prim_func
    def kernel(A: T.Buffer((40 * count,), dtype), B: T.Buffer((32 * count,), dtype)):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([32])
        r = T.alloc_local((count,), dtype)
        T.ptx.ld(
            A.ptr_to([tid * count + first]),
            dtype,
            ptx_type,
            dst=r.ptr_to([0]),
            space="global",
            vec=vec,
        )
        for i in range(count):
            B[tid * count + i] = r[i]

    return kernel


def store(vec, ptx_type, dtype, count, first=0):
    @T.prim_func
    def kernel(A: T.Buffer((32 * count,), dtype), B: T.Buffer((40 * count,), dtype)):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([32])
        r = T.alloc_local((count,), dtype)
        for i in range(count):
            r[i] = A[tid * count + i]
        T.ptx.st(
            B.ptr_to([tid * count + first]),
            src=r.ptr_to([0]),
            space="global",
            vec=vec,
            ptx_type=ptx_type,
        )

    return kernel


WIDE = [
    ("v8", "b32", "float32", 8),
    ("v8", "u32", "uint32", 8),
    ("v4", "b64", "uint64", 4),
    ("v4", "f64", "float64", 4),
]


@pytest.mark.parametrize("schedule", ["in-order", "random:3"])
@pytest.mark.parametrize("form", WIDE)
def test_each_thread_moves_its_own_256_bits(form, schedule):
    dtype, count = form[2:]
    short, long = (np.arange(n * count).astype(dtype) for n in (32, 40))
    run = simulate(load(*form), [long, np.zeros_like(short)], schedule)
    assert not run.findings and (run.outputs["B"] == short).all()
    assert run.counters["bytes_global_loaded"] == 32 * 32
    run = simulate(store(*form), [short, np.zeros_like(long)], schedule)
    assert not run.findings and (run.outputs["B"][: 32 * count] == short).all()
    assert (run.outputs["B"][32 * count :] == 0).all()


@pytest.mark.parametrize("form", WIDE)
@pytest.mark.parametrize("make", [load, store])
def test_half_a_vector_from_its_place_is_misaligned(make, form):
    dtype, count = form[2:]
    short, long = (np.zeros(n * count, dtype) for n in (32, 40))
    arrays = [long, short] if make is load else [short, long]
    (finding,) = simulate(make(*form, first=count // 2), arrays, checks="memory").findings
    assert finding.code == "misaligned-access" and "32 bytes at byte 16" in finding.message


@pytest.mark.parametrize("form", WIDE[:1])
def test_threads_that_store_overlapping_vectors_race(form):
    @T.prim_func
    def kernel(B: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([64])
        r = T.alloc_local((8,), "float32")
        for i in range(8):
            r[i] = T.cast(tid, "float32")
        T.ptx.st(
            B.ptr_to([tid % 32 // 4 * 8]),
            src=r.ptr_to([0]),
            space="global",
            vec="v8",
            ptx_type="b32",
        )

    found = simulate(kernel, [np.zeros(64, "f4")]).findings
    assert found and {f.severity for f in found} == {"error"}


@pytest.mark.parametrize(
    ("space", "vec", "ptx_type"),
    [
        ("shared", "v8", "b32"),
        ("shared", "v4", "b64"),
        ("global", "v8", "b64"),
        ("global", "v8", "b16"),
    ],
)
def test_vectors_that_ptx_has_not_are_refused(space, vec, ptx_type):
    dtype, count = "uint" + ptx_type[1:], int(vec[1:])

    @T.prim_func
    def kernel(A: T.Buffer((count,), dtype)):
        T.device_entry()
        T.cta_id([1])
        T.thread_id([32])
        r = T.alloc_local((count,), dtype)
        S = T.alloc_shared([count], dtype)
        T.ptx.ld(
            (S if space == "shared" else A).ptr_to([0]),
            dtype,
            ptx_type,
            dst=r.ptr_to([0]),
            space=space,
            vec=vec,
        )
        A[0] = r[0]

    with pytest.raises(UnsupportedInstruction, match=rf"PTX has no {space}.{vec}.{ptx_type}"):
        simulate(kernel, [np.zeros(count, dtype)])
