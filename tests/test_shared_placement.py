"""Where shared memory lies: offsets that ptxas gave on an H200, and the order and alignment of TVM's CUDA text."""

import re

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import lower, simulate
from phaseflip.ir import nodes as ir
from phaseflip.translate.layout import Layout

SITE = ir.Site("placement.py", 1)


def buffer(name, nbytes, align, scope="shared"):
    return ir.Buffer(name, "uint8", nbytes, scope, align_bytes=align)


def offsets(buffers, body=None):
    """Offsets in the CTA's window of the buffers, all of them read, after the statements of `body`."""
    body = body or [ir.Allocate(b, SITE) for b in buffers]
    reads = [ir.Evaluate(ir.Address(b, ir.Const(0, "int32")), SITE) for b in buffers]
    layout = Layout()
    layout.place_shared([*body, *reads])
    return [layout.shared[b] for b in buffers]


@pytest.mark.parametrize(
    ("static", "dynamic", "measured"),
    [
        ([(8, 64), (512, 128), (3, 64), (6, 64)], 1024, [1024, 1152, 1664, 1728, 2048]),
        ([(6, 64), (512, 128), (3, 64), (8, 64)], None, [1024, 1152, 1664, 1728]),
        ([(8, 64), (8, 64)], 16, [1024, 1088, 1104]),
        ([(8, 64), (8, 64)], 2048, [1024, 1088, 3072]),
        ([], 2048, [1024]),
        ([(8, 64), (1, 1)], 128, [1024, 1032, 1152]),
        ([(1, 64), (512, 64), (64, 4)], 16, [1024, 1088, 1600, 1664]),
        ([(3, 4), (64, 128), (8, 16), (512, 256), (1, 64)], 128, [1024, 1152, 1216, 1280, 1792, 1920]),
        ([(512, 128), (4, 64), (512, 128), (1, 16), (100, 128), (8, 1)], 1024,
         [1024, 1536, 1664, 2176, 2304, 2404, 3072]),
        ([(64, 64), (8, 128), (4, 256), (12, 1), (1, 64), (12, 4)], 16,
         [1024, 1152, 1280, 1284, 1344, 1348, 1360]),
        ([(100, 1), (8, 1), (3, 16), (4, 64), (4, 1), (8, 64)], 128,
         [1024, 1124, 1136, 1152, 1156, 1216, 1280]),
        ([(100, 16), (8, 256), (4, 16), (12, 128), (64, 256)], 16, [1024, 1280, 1296, 1408, 1536, 1600]),
    ],
)  # fmt: skip
def test_offsets_are_those_of_an_h200(static, dynamic, measured):
    buffers = [buffer(f"s{i}", *sizes) for i, sizes in enumerate(static)]
    if dynamic:
        buffers.append(buffer("dynamic", 4, dynamic, "shared.dyn"))
    assert offsets(buffers) == measured
    if dynamic:  # dynamic memory lies behind, wherever it is declared
        moved = buffers[-1:] + buffers[:-1]
        assert offsets(buffers, [ir.Allocate(b, SITE) for b in moved]) == measured


def test_buffers_of_inner_scopes_come_after_those_of_the_scope_around():
    """As nvcc orders ten arrays of 64 bytes in its PTX: outer ones, then scope by scope."""
    names = ["o1", "o2", "n1", "n1c", "n1a", "n1b", "n1aa", "n2", "n2a", "n3"]
    b = {name: buffer(name, 64, 64) for name in names}

    def scope(*parts):
        condition = ir.Const(True, "bool")
        return ir.If(condition, [p if isinstance(p, ir.If) else ir.Allocate(b[p], SITE) for p in parts], [], SITE)  # fmt: skip

    body = [
        *scope(scope("n1", scope("n1a", scope("n1aa"), "n1b"), "n1c"), "o1").then,
        *scope(scope("n2", scope("n2a")), "o2", scope("n3")).then,
    ]
    assert offsets(list(b.values()), body) == list(range(1024, 1024 + 640, 64))


def test_what_nothing_reads_moves_nothing():
    kept, stored, unused = (buffer(name, 8, 64) for name in ("kept", "stored", "unused"))
    store = ir.Store(stored, ir.Const(0, "int32"), ir.Const(1, "uint8"), SITE)
    layout = Layout()
    read = ir.Evaluate(ir.Address(kept, ir.Const(0, "int32")), SITE)
    layout.place_shared([*(ir.Allocate(b, SITE) for b in (unused, stored, kept)), store, read])
    assert layout.shared == {kept: 1024, stored: 1088}


def shared_addresses(S_align, D_align, dtype):
    @T.prim_func
    def kernel(A: T.Buffer((128,), "float32"), B: T.Buffer((4,), "uint32")):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([128])
        if tid < 64:
            inner = T.alloc_buffer((7,), "uint8", scope="shared")
            B[3] = T.cuda.cvta_generic_to_shared(inner.ptr_to([0]))
        first = T.alloc_buffer((3,), dtype, scope="shared")
        S = T.alloc_buffer((128,), "float32", scope="shared", align=S_align)
        D = T.alloc_buffer((128,), "float32", scope="shared.dyn", align=D_align)
        S[tid] = A[tid]
        D[tid] = S[tid]
        T.cuda.cta_sync()
        A[tid] = D[tid]
        if tid == 0:
            B[0] = T.cuda.cvta_generic_to_shared(first.ptr_to([0]))
            B[1] = T.cuda.cvta_generic_to_shared(S.ptr_to([0]))
            B[2] = T.cuda.cvta_generic_to_shared(D.ptr_to([0]))

    return kernel


@pytest.mark.parametrize("dtype", ["float16", "uint64", "float8_e4m3fn"])
@pytest.mark.parametrize(("S_align", "D_align"), [(0, 0), (16, 16), (128, 1024), (512, 128), (2048, 2048)])  # fmt: skip
def test_addresses_are_those_of_the_cuda_text(S_align, D_align, dtype):
    """Offsets by hand from the declarations of the text: outer ones in their order, then the inner one, then dynamic."""
    lowered = lower(shared_addresses(S_align, D_align, dtype))
    declared = re.findall(
        r"__shared__ (?:alignas|__align__)\((\d+)\) \w+ (\w+)_ptr\[(\d*)\]", lowered.cuda_source()
    )
    align = {name: int(n) for n, name, _ in declared}
    assert [name for _, name, _ in declared] == ["inner", "first", "S", "D"]
    nbytes = {"first": 3 * {"float16": 2, "uint64": 8}.get(dtype, 1), "S": 512, "inner": 7, "D": 0}
    at, expected = 0, {}
    for name in ("first", "S", "inner", "D"):
        at = -(-at // align[name]) * align[name]
        expected[name], at = 1024 + at, at + nbytes[name]
    outputs = simulate(lowered, [np.zeros(128, "f4"), np.zeros(4, "u4")], checks="none").outputs
    assert outputs["B"].tolist() == [expected[n] for n in ("first", "S", "D", "inner")]
    assert lowered.program.static_shared_bytes == expected["D"] - 1024
