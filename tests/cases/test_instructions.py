"""Instructions in whole kernels: each right and silent under 23 schedules, and each faulty variant found under all of them."""

import functools
import zlib
from pathlib import Path

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import lower, simulate
from phaseflip.conformance.generated_text import function_of
from phaseflip.errors import UnsupportedInstruction
from phaseflip.machine.tcgen05.instruction_descriptor import InstructionDescriptor

from . import harness

SHAPE = (128, 128, 128)


@functools.lru_cache(maxsize=32)
def variant(name, *edits):
    """A case kernel, lowered, after edits of its source: (old text, new text), each of which occurs once."""
    text = (Path(__file__).parent / f"{name}.py").read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return lower(function_of(text, f"{name}_{zlib.crc32(repr(edits).encode())}", "k")(*SHAPE))


def arrays_of(kernel):
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, s).astype(dtype) for _, dtype, s in kernel.parameters]


def run(schedule, name, *edits):
    """(errors, whether D = A B^T) of one run."""
    kernel = variant(name, *edits)
    arrays = arrays_of(kernel)
    result = simulate(kernel, arrays, schedule)
    A, B = (a.astype(np.float32) for a in arrays[:2])
    right = np.array_equal((A @ B.T).astype(np.float16), result.outputs["D"])
    return [f for f in result.findings if f.severity == "error"], right


def errors(schedule, name, *edits):
    return {f.title for f in run(schedule, name, *edits)[0]}


RIGHT = [
    "c01_try_wait_once_ok",
    "c11_cta_reduce_ok",
    "c14_instr_desc_ok",
    "c16_cp_async_ok",
    "c18_acquire_ok",
    "cp_async_gemm_ok",
]


@pytest.mark.parametrize("schedule", harness.SCHEDULES)
@pytest.mark.parametrize("name", RIGHT)
def test_right_and_silent(name, schedule):
    assert run(schedule, name) == ([], True)


POLL = "while T.ptx.mbarrier.try_wait_once(tma_bar.ptr_to([0]), phase_tma, 20) == 0:"
COPY_WAIT = "            T.ptx.cp_async.wait_group(0)\n"
READS = (
    '            T.ptx.cp_async.wait_group(0)\n            T.ptx.fence.proxy_async("shared::cta")\n'
)
REDUCE = "any_ = T.cuda.syncthreads_or(lane_id)\n"

FAULTY = {
    "a poll that is not repeated": (
        "c01_try_wait_once_ok",
        [(POLL, POLL.replace("while", "if"))],
        {"race shared raw"},
    ),
    "a reduction that one warp reaches": (
        "c11_cta_reduce_ok",
        [(REDUCE, f"if warp_id == 0:\n            {REDUCE}")],
        {"deadlock"},
    ),
    "copies that are not waited for": (
        "cp_async_gemm_ok",
        [(COPY_WAIT, "")],
        {"race shared raw"},
    ),
    "copies of which one group may be pending": (
        "cp_async_gemm_ok",
        [(COPY_WAIT, COPY_WAIT.replace("0", "1"))],
        {"race shared raw"},
    ),
    "copies that are in no group": (
        "cp_async_gemm_ok",
        [("            T.ptx.cp_async.commit_group()\n", "")],
        {"race shared raw"},
    ),
    "copies that are not fenced for the MMA": (
        "cp_async_gemm_ok",
        [(READS, COPY_WAIT)],
        {"missing-proxy-fence shared raw"},
    ),
}


@pytest.mark.parametrize("schedule", harness.SCHEDULES)
@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_is_found(fault, schedule):
    name, edits, expected = FAULTY[fault]
    assert expected <= errors(schedule, name, *edits)


@pytest.mark.parametrize("schedule", harness.SCHEDULES)
def test_the_response_of_c12_lies_past_the_end_of_shared_memory(schedule):
    """TVM allocates what comes after `pool.commit` past the end, and scales its index twice: CUDA writes at byte 331776."""
    (found,) = harness.errors("c12_clc_ok", 128, 256, 128, schedule=schedule)
    assert found.title == "out-of-bounds" and "whose shared memory has 83968 bytes" in found.why


@pytest.mark.parametrize("schedule", harness.SCHEDULES)
def test_c18_races_where_two_ctas_share_the_element(schedule):
    """CTA 1 loads D[0, 0] while CTA 0 stores it: strong or not, nothing orders the load before the bulk store."""
    found = harness.errors("c18_acquire_ok", 128, 256, 128, schedule=schedule)
    assert {f.title for f in found} == {"race global war"}


def descriptor(m=128, n=64, trans=False):
    @T.prim_func
    def kernel(D: T.Buffer((32,), "uint32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        idesc: T.uint32 = T.uint32(0)
        T.ptx.tcgen05.encode_instr_descriptor(
            T.address_of(idesc), d_dtype="float32", a_dtype="bfloat16", b_dtype="bfloat16", M=m, N=n, K=16,
            trans_a=False, trans_b=trans, n_cta_groups=1,
        )  # fmt: skip
        D[lane] = idesc

    return kernel


@pytest.mark.parametrize(("m", "n", "trans"), [(128, 64, False), (64, 256, True)])
def test_a_descriptor_encoded_at_run_time_has_its_fields(m, n, trans):
    run = simulate(lower(descriptor(m, n, trans)), [np.zeros(32, np.uint32)])
    assert not run.findings
    (value,) = set(run.outputs["D"].tolist())
    assert InstructionDescriptor.decode(value, "f16") == InstructionDescriptor(
        "f16", m, n, "float32", "bfloat16", "bfloat16", b_mn_major=trans
    )


def test_a_descriptor_of_an_illegal_shape_is_refused():
    with pytest.raises(UnsupportedInstruction, match="M=96 N=64 is not legal"):
        simulate(lower(descriptor(96)), [np.zeros(32, np.uint32)])
