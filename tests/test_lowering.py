"""Lowering: TVM's own passes, source lines that survive them, and refusals in one sentence."""

import numpy as np
import pytest
import tvm
from tvm.script.tirx import tile as Tx

from kernels.hgemm_v3 import KERNEL as V3
from phaseflip import lower, simulate
from phaseflip.errors import BadInput, UnsupportedInstruction
from phaseflip.frontend.tirx import lowering
from phaseflip.frontend.tirx import reader as tir
from phaseflip.ir import nodes as ir
from phaseflip.ir.queries import walk
from phaseflip.spelling import T

N = 128


def lines_marked(mark):
    with open(__file__, encoding="utf-8") as file:
        return [i + 1 for i, t in enumerate(file.read().splitlines()) if t.endswith(f"# {mark}")]


def unmarked_source(func, arch=lowering.DEFAULT_ARCH):
    _, device = lowering._run_passes({"main": func}, arch)
    with lowering.compiling_by(lambda source: b"not compiled"):
        return "\n".join(
            tvm.get_global_func("target.build." + target.kind.name)(module, target).inspect_source()
            for target, module in device.items()
        )


def three_loops():
    @T.prim_func
    def kernel(A: T.Buffer((N, 8), "float32"), D: T.Buffer((N, 8), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "float32")
        h = T.alloc_local((8,), "float16")
        Tx.copy(r[:], A[tid, :])  # tile
        if tid > 3:
            for i in T.serial(8):
                r[i] = r[i] + T.float32(1)  # plain
        Tx.cast(h[:], r[:])  # tile
        T.cuda.cta_sync()  # plain
        Tx.copy(D[tid, :], h[:])  # tile

    return kernel


@pytest.mark.parametrize(
    "make", [three_loops, lambda: V3.build(256, 128, 128)], ids=["small", "v3"]
)
def test_the_cuda_source_is_that_of_the_kernel_without_marks(make):
    func = make()
    assert lower(func).cuda_source() == unmarked_source(func)


@pytest.mark.parametrize(
    "make", [three_loops, lambda: V3.build(256, 128, 128)], ids=["small", "v3"]
)
def test_marks_move_no_more_than_the_names_of_common_subexpressions(make):
    """Without that pass, the marked and the unmarked kernel give the same source: what is simulated is what would run."""
    func = make()
    with tvm.transform.PassContext(disabled_pass=["tirx.CommonSubexprElim"]):
        assert unmarked_source(tir.mark_lines(func, {})) == unmarked_source(func)


def test_marking_lines_does_not_change_the_function_itself():
    func = three_loops()
    before = func.script()
    tir.mark_lines(func, {})
    lower(func)
    assert func.script() == before


def test_every_statement_has_a_line_of_this_file():
    body = walk(lower(three_loops()).device.body)
    statements = [s for s in body if not isinstance(s, (ir.Allocate, ir.Let))]
    assert statements and {s.site.file for s in statements} == {__file__}


@T.prim_func
def conditions(D: T.Buffer((64,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    s = T.alloc_shared((64,), "int32")
    s[warp * 32 + lane] = 1
    T.cuda.warp_sync()
    if T.ptx.elect_sync():  # elects
        if s[63 - warp * 32 - lane] > 0:  # reads
            D[warp] = 1
    for i in T.serial(s[63 - warp * 32 - lane]):  # bounds
        if i > 99:
            D[i] = i


def test_library_templates_carry_the_line_of_the_call():
    """Tile copies and casts expand to code of TVM's; what they execute is blamed on the user's line."""
    called = [s for s in walk(lower(three_loops()).device.body) if isinstance(s, ir.Evaluate)]
    lines = {s.site.line for s in called}
    assert set(lines_marked("tile")) <= lines <= set(lines_marked("tile") + lines_marked("plain"))


def test_plain_statements_carry_their_own_line():
    stores = [s for s in walk(lower(three_loops()).device.body) if isinstance(s, ir.Store)]
    assert lines_marked("plain")[0] in {s.site.line for s in stores}


def test_parameters_keep_their_order():
    """TVM sorts the device function's pointers by name; the user's order is that of the signature."""

    @T.prim_func
    def kernel(
        Z: T.Buffer((N,), "int32"), M: T.Buffer((2, N), "bfloat16"), A: T.Buffer((N,), "uint8")
    ):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        Z[tid] = T.cast(A[tid], "int32")
        M[1, tid] = T.cast(A[tid], "bfloat16")

    lowered = lower(kernel)
    assert lowered.parameters == [
        ("Z", "int32", (N,)),
        ("M", "bfloat16", (2, N)),
        ("A", "uint8", (N,)),
    ]


def test_the_launch_geometry_is_read():
    @T.prim_func
    def kernel(D: T.Buffer((6, 64), "int32")):
        T.device_entry()
        bx, by = T.cta_id([3, 2])
        tid = T.thread_id([64])
        D[bx * 2 + by, tid] = tid

    extents = lower(kernel).device.extents
    assert int(np.prod([n for axis, n in extents.items() if axis.startswith("blockIdx")])) == 6
    assert extents["threadIdx.x"] == 64


@pytest.mark.parametrize("value", [None, 3, "kernel", lambda: None, np.zeros(3)])
def test_what_is_no_prim_func_is_refused(value):
    with pytest.raises(BadInput, match="PrimFunc") as error:
        lower(value)
    assert "\n" not in str(error.value)


def test_a_module_is_refused_as_well():
    with pytest.raises(BadInput, match="PrimFunc"):
        lower(tvm.IRModule({"main": three_loops()}))


@pytest.mark.parametrize("version", ["0.25.1", "0.28.0", "0.2.6", "1.0.0"])
def test_another_tvm_is_refused_with_the_supported_one(monkeypatch, version):
    func = three_loops()
    monkeypatch.setattr(tvm, "__version__", version)
    with pytest.raises(BadInput) as error:
        lower(func)
    message = str(error.value)
    assert version in message and "0.26.x and 0.27.x" in message and "\n" not in message


@pytest.mark.parametrize("version", ["0.26.3", "0.27.0.post1", "0.27.1"])
def test_releases_of_the_supported_series_are_accepted(monkeypatch, version):
    func = three_loops()
    monkeypatch.setattr(tvm, "__version__", version)
    lower(func)


def test_a_parameter_that_is_neither_buffer_nor_number_is_refused():
    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), n: T.handle):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        A[tid] = 1

    with pytest.raises(
        BadInput, match="parameter n of the kernel is neither a buffer nor a number"
    ):
        lower(kernel)


def test_a_kernel_that_tvm_refuses_is_bad_input_with_the_reason():
    @T.prim_func
    def kernel(A: T.Buffer((N, 64), "float16"), D: T.Buffer((N, 64), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        Tx.cta.copy(D[:, :], A[:, :])

    with pytest.raises(BadInput) as error:
        lower(kernel)
    message = str(error.value)
    assert message.startswith("TVM 0.26.0 cannot lower the kernel: ")
    assert "copy" in message and "\n" not in message and "+--" not in message


def test_what_an_architecture_lacks_is_the_reason():
    from tests.litmus.test_cluster_tma import counted_by_the_leader

    with pytest.raises(BadInput, match=r"cta_group=2 requires SM100\+, got 'sm_90a'"):
        lower(counted_by_the_leader(), "sm_90a")


def test_a_kernel_without_device_entry_is_refused():
    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32")):
        for i in T.serial(N):
            A[i] = i

    with pytest.raises(BadInput) as error:
        lower(kernel)
    assert "\n" not in str(error.value)


def refused(kernel):
    """The message for a kernel that the simulator cannot run; it must come before anything runs."""
    with pytest.raises(UnsupportedInstruction) as error:
        _ = lower(kernel).program
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_unknown_instruction_is_named_with_its_line():
    @T.prim_func
    def kernel(D: T.Buffer((N,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        D[tid] = T.ptx.exp2(D[tid])  # exp2

    message = refused(kernel)
    assert "exp2" in message and f"{__file__}:{lines_marked('exp2')[0]}" in message


def test_an_unknown_form_of_a_known_instruction_is_named_with_its_line():
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        T.ptx.st(D.ptr_to([tid]), tid, ptx_type="b32", space="global")  # values

    message = refused(kernel)
    assert "ptx.st" in message and f"{__file__}:{lines_marked('values')[0]}" in message


def test_a_load_into_scattered_registers_is_refused_or_right():
    @T.prim_func
    def kernel(A: T.Buffer((N, 2), "int32"), D: T.Buffer((N, 2), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((1,), "int32")
        q = T.alloc_local((1,), "int32")
        T.ptx.ld(A.ptr_to([tid, 0]), "int32", "b32", dst=[r.ptr_to([0]), q.ptr_to([0])], vec="v2")
        D[tid, 0] = q[0]
        D[tid, 1] = r[0]

    assert "ld" in refused(kernel)


def test_vector_expressions_are_refused():
    @T.prim_func
    def kernel(A: T.Buffer((N, 4), "float32"), D: T.Buffer((N, 4), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.vectorized(4):
            D[tid, i] = A[tid, i] * T.float32(2)  # vector

    message = refused(kernel)
    assert "vector" in message and f":{lines_marked('vector')[0]}" in message


def test_lowering_again_gives_the_same_source():
    assert lower(three_loops()).cuda_source() == lower(three_loops()).cuda_source()


def test_simulating_a_prim_func_again_lowers_it_once():
    func = three_loops()
    first = lowering.lower_once(func)
    arrays = [np.zeros((N, 8), np.float32), np.zeros((N, 8), np.float16)]
    assert [simulate(func, arrays).seconds["lower"] for _ in range(2)] == [first.seconds] * 2
    assert lowering.lower_once(func) is first
    assert lowering.lower_once(three_loops()) is not first
    with pytest.raises(BadInput, match="PrimFunc"):
        lowering.lower_once([func])
