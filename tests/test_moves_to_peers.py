"""Every move that takes an address treats that of another CTA the same, run as one operation or iteration by iteration."""

import numpy as np
import pytest
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from phaseflip import lower, simulate
from phaseflip.conformance.generated_text import in_cta
from phaseflip.translate.translator import translate
from tests.litmus import test_cluster_memory, test_look_alikes, test_shared_memory

SCHEDULES = ("in-order", "lazy", "random:1", "random:2")


def compare(primfunc, schedule):
    """The run, after asserting that findings, counters and outputs agree on both paths."""
    lowered, runs = lower(primfunc), []
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype(dtype) for _, dtype, shape in lowered.parameters]
    for vectorise in (True, False):
        lowered.__dict__["program"] = translate(lowered.device, vectorise=vectorise)
        runs.append(simulate(lowered, arrays, schedule))
    fast, plain = runs
    assert fast.counters == plain.counters
    assert [(f.title, f.place, f.other, f.severity) for f in fast.findings] == [
        (f.title, f.place, f.other, f.severity) for f in plain.findings
    ]
    for name, values in plain.outputs.items():
        assert fast.outputs[name].tobytes() == values.tobytes(), name
    return fast


def tile_to_peer(closed=True, own=False):
    """A tile copy into the shared memory of the other CTA, or of each in turn."""

    @T.prim_func
    def kernel(A: T.Buffer((64, 64), "float16"), D: T.Buffer((64, 64), "float16")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32, 64), "float16", align=16)
        pool.commit()
        T.cuda.cluster_sync()
        peer = in_cta(s, rank if own else rank ^ 1)
        Tx.copy(peer[lane, :], A[rank * 32 + lane, :])
        if closed:
            T.cuda.cluster_sync()
            for i in T.serial(64):
                D[rank * 32 + lane, i] = s[lane, i]

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tile_copy_into_a_peer_without_a_cluster_barrier_is_peer_exited(schedule):
    run = compare(tile_to_peer(closed=False), schedule)
    assert [f.title for f in run.findings] == ["peer-exited"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tile_copy_into_a_peer_arrives_there(schedule):
    run = compare(tile_to_peer(), schedule)
    assert not run.findings
    A = np.random.default_rng(0).integers(-3, 4, (64, 64)).astype(np.float16)
    np.testing.assert_array_equal(run.outputs["D"], np.roll(A, 32, axis=0))
    assert not compare(tile_to_peer(own=True), schedule).findings


def rows_of_both():
    """The iterations of one copy loop lead to CTA 0 and CTA 1 in turn."""

    @T.prim_func
    def kernel(A: T.Buffer((64, 8), "float16"), D: T.Buffer((2, 2, 32, 8), "float16")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((2, 32, 8), "float16", align=16)
        pool.commit()
        T.cuda.cluster_sync()
        regs = T.alloc_local((8,), "float16")
        for to in T.serial(2):
            T.ptx.ld(
                A.ptr_to([rank * 32 + lane, 0]),
                "uint32",
                "u32",
                space="global",
                vec="v4",
                dst=regs.ptr_to([0]),
            )
            T.ptx.st(
                in_cta(s, to).ptr_to([rank, lane, 0]), src=regs.ptr_to([0]), space="shared", vec="v4",
                ptx_type="u32",
            )  # fmt: skip
        T.cuda.cluster_sync()
        for which in T.serial(2):
            for i in T.serial(8):
                D[rank, which, lane, i] = s[which, lane, i]

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_iterations_that_lead_to_several_ctas(schedule):
    run = compare(rows_of_both(), schedule)
    assert not run.findings
    A = np.random.default_rng(0).integers(-3, 4, (64, 8)).astype(np.float16).reshape(2, 32, 8)
    np.testing.assert_array_equal(run.outputs["D"], np.stack([A, A]))


@pytest.mark.parametrize("stores", [False, True])
def test_matrix_moves_refuse_the_memory_of_another_cta(stores):
    @T.prim_func
    def kernel(D: T.Buffer((32,), "uint32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((8, 8), "float16", align=16)
        pool.commit()
        regs = T.alloc_local((1,), "uint32")
        regs[0] = T.uint32(0)
        T.cuda.cluster_sync()
        peer = in_cta(s, rank ^ 1)
        if stores:
            T.ptx.stmatrix(False, 1, ".b16", peer.ptr_to([lane % 8, 0]), regs.ptr_to([0]))
        else:
            T.ptx.ldmatrix(False, 1, ".b16", peer.ptr_to([lane % 8, 0]), regs.ptr_to([0]))
        T.cuda.cluster_sync()

    lowered = lower(kernel)
    (found,) = (
        f for f in simulate(lowered, [np.zeros(32, np.uint32)]).findings if f.severity == "error"
    )
    assert found.title == "out-of-bounds"
    assert "another CTA" in found.why and ".shared::cta" in found.why


FACTORIES = [
    (factory, flags)
    for module in (test_cluster_memory, test_look_alikes, test_shared_memory)
    for factory in vars(module).values()
    if hasattr(factory, "variants")
    for flags in factory.variants
]


@pytest.mark.parametrize(
    ("factory", "flags"), FACTORIES, ids=[f"{f.__name__}{i}" for i, (f, _) in enumerate(FACTORIES)]
)
def test_litmus_kernels_agree(factory, flags):
    compare(factory(**flags), "random:1")
    for flag, value in flags.items() or {}:
        if isinstance(value, bool):
            compare(factory(**flags | {flag: not value}), "in-order")
