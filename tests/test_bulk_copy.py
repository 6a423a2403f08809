"""Bulk copies of plain bytes: what is moved, counted, and refused; hints that change nothing."""

import functools

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.errors import UnsupportedInstruction
from phaseflip.frontend.tirx.decoding import decode
from phaseflip.ir import nodes as ir
from phaseflip.spelling import T

SCHEDULES = ("in-order", "eager", "lazy", "random:3")
N = 256
NBYTES = 4 * N


@functools.cache
def round_trip(nbytes=NBYTES, shared_byte=0, global_byte=0):
    """`nbytes` of A from byte `global_byte` to shared memory, from there to the peer, and from there to the same of D."""

    @T.prim_func
    def kernel(A: T.Buffer((NBYTES,), "uint8"), D: T.Buffer((NBYTES,), "uint8")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((NBYTES,), "uint8", align=16)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        if tid == 0:
            T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)
            if rank == 0:
                T.ptx.cp_async_bulk_g2s_cta(
                    s.ptr_to([shared_byte]), A.ptr_to([global_byte]), nbytes, bar.ptr_to([0])
                )
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            if rank == 0:
                T.ptx.cp_async_bulk_s2s_cluster(
                    T.ptx.map_shared_rank(s.ptr_to([shared_byte]), 1),
                    s.ptr_to([shared_byte]),
                    nbytes,
                    T.ptx.map_shared_rank(bar.ptr_to([0]), 1),
                )
            else:
                T.ptx.cp_async_bulk_s2g(D.ptr_to([global_byte]), s.ptr_to([shared_byte]), nbytes)
                T.ptx.cp_async.bulk.commit_group()
                T.ptx.cp_async.bulk.wait_group(0)
        T.cuda.cluster_sync()

    return lower(kernel)


def run(schedule="in-order", **options):
    A = np.random.default_rng(1).integers(1, 256, NBYTES).astype(np.uint8)
    return A, simulate(round_trip(**options), [A, np.zeros_like(A)], schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("nbytes", "shared_byte", "global_byte"), [(NBYTES, 0, 0), (16, 48, 1008), (336, 16, 160)]
)
def test_bytes_go_round_by_shared_memory_of_two_ctas(schedule, nbytes, shared_byte, global_byte):
    A, result = run(schedule, nbytes=nbytes, shared_byte=shared_byte, global_byte=global_byte)
    assert [str(f) for f in result.findings] == []
    expected = np.zeros_like(A)
    expected[global_byte : global_byte + nbytes] = A[global_byte : global_byte + nbytes]
    assert result.outputs["D"].tobytes() == expected.tobytes()
    paths = ("global_to_shared", "shared_to_shared", "shared_to_global")
    assert [result.counters[f"bytes_{path}"] for path in paths] == [nbytes] * 3


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        ({"nbytes": 24}, "misaligned-access", "of 24 bytes; a positive multiple of 16"),
        ({"nbytes": 0}, "misaligned-access", "of 0 bytes; a positive multiple of 16"),
        ({"nbytes": 16, "shared_byte": 8}, "misaligned-access", "of shared memory; a multiple of 16"),
        ({"nbytes": 16, "global_byte": 8}, "misaligned-access", "byte 8 of global memory"),
        ({"global_byte": 16}, "out-of-bounds", "1024 bytes at byte 16 of global memory, which has 1024 bytes"),
        ({"shared_byte": 16}, "out-of-bounds", "of shared memory, which has"),
    ],
)  # fmt: skip
def test_what_is_not_whole_aligned_or_inside_is_a_finding(options, code, sentence):
    _, result = run(**options)
    (finding,) = result.findings
    assert (result.stopped, finding.code) == (True, code)
    assert sentence in finding.message


def test_hints_change_nothing():
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([32])
        T.ptx.griddepcontrol.wait()
        T.cuda.nano_sleep(T.uint64(100))
        D[tid] = tid
        T.ptx.griddepcontrol.launch_dependents()

    result = simulate(kernel, [np.zeros(32, np.int32)])
    assert result.findings == [] and result.outputs["D"].tolist() == list(range(32))
    counted = ("griddepcontrol.wait", "nanosleep", "griddepcontrol.launch_dependents")
    assert [result.counters[name] for name in counted] == [1, 1, 1]


def call(name, *args):
    constants = [ir.Const(a, "str" if isinstance(a, str) else "int32") for a in args]
    return decode(ir.Call(f"tirx.ptx.{name}", constants, "", ir.Site("kernel.py", 7)))


def values(operands):
    """Constants as plain values."""
    return {
        k: [x.value for x in v] if isinstance(v, list) else getattr(v, "value", v)
        for k, v in operands.items()
    }


def test_a_box_for_the_own_cta_is_decoded_like_one_for_the_cluster():
    decoded = call("cp_async_bulk_tensor_g2s_cta", 2, 10, 20, 30, 2, 0, 0, "tile", 0, 5, 6)
    assert decoded.mnemonic == "cp.async.bulk.tensor.g2s"
    assert values(decoded.operands) == {
        "dst": 10, "mbar": 20, "tensor_map": 30, "coordinates": [5, 6], "cta_mask": None, "cta_group": 2
    }  # fmt: skip
    cluster = call(
        "cp_async_bulk_tensor_g2s_cluster", 2, 10, 20, 30, 0, 2, 0, 0, "tile", 0, 0, 5, 6
    )
    assert values(cluster.operands) == values(decoded.operands)


def test_a_prefetch_of_a_box_has_no_operands():
    decoded = call("cp_async_bulk_tensor_prefetch", 2, 30, 0, 0, 5, 6)
    assert (decoded.mnemonic, decoded.operands) == ("cp.async.bulk.prefetch.tensor", {})


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("cp_async_bulk_g2s_cta", (1, 2, 16, 0, 0, 3, 0, 0, 1), "with .ignore_oob is not simulated"),
        ("cp_async_bulk_s2g", (1, 2, 16, 5, 0, 1, 1), "with .cp_mask is not simulated"),
        ("cp_async_bulk_tensor_g2s_cta", (2, 1, 2, 3, 1, 0, 0, "tile_gather4", 0, 0), "gather4 is not simulated"),
    ],
)  # fmt: skip
def test_forms_that_are_not_simulated_are_refused_by_name_and_line(name, args, sentence):
    with pytest.raises(UnsupportedInstruction, match=f"kernel.py:7: .*{sentence}"):
        call(name, *args)
