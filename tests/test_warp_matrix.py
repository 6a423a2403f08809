"""ldmatrix and stmatrix against a plain model of one lane at a time; the matrix descriptor of wgmma."""

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.conformance.families.matrix import matrix_kernel
from phaseflip.errors import BadInput
from phaseflip.machine.wgmma.operands import decode_descriptor

CTAS, ROWS = 4, 128


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_rows_go_to_registers_and_back(number, trans):
    rng = np.random.default_rng(number)
    shared = rng.integers(0, 2**15, (ROWS, 8)).astype(np.uint16)
    rows = np.stack([np.stack([rng.permutation(ROWS)[:32] for _ in range(2)]) for _ in range(CTAS)])
    R, D = np.zeros((CTAS, 32, number), np.uint32), np.zeros((CTAS, 4 * ROWS), np.uint32)
    A = shared.reshape(-1).view(np.uint32)
    run = simulate(lower(matrix_kernel(number, trans)), [A, rows.astype(np.int32), R, D])
    assert run.findings == []
    for cta in range(CTAS):
        expected, after = np.zeros((32, number, 2), np.uint16), shared.copy()
        for lane in range(32):
            for i in range(number):
                for half in range(2):
                    across, along = lane // 4, 2 * (lane % 4) + half
                    row, column = (along, across) if trans[0] else (across, along)
                    value = shared[rows[cta, 0, 8 * i + row], column]
                    expected[lane, i, half] = value
                    row, column = (along, across) if trans[1] else (across, along)
                    after[rows[cta, 1, 8 * i + row], column] = value + 1
        assert (run.outputs["R"][cta].view(np.uint16).reshape(32, number, 2) == expected).all()
        assert (run.outputs["D"][cta].view(np.uint16).reshape(ROWS, 8) == after).all()


def test_fields_of_wgmmas_descriptor():
    fields = 1024 >> 4 | 32 >> 4 << 16 | 512 >> 4 << 32 | 5 << 49
    for code, swizzle in enumerate(("none", "128B", "64B", "32B")):
        d = decode_descriptor(fields | code << 62)
        assert (d.start_bytes, d.leading_bytes, d.stride_bytes) == (1024, 32, 512)
        assert (d.base_offset, d.swizzle) == (5, swizzle)
    for bit in (14, 31, 46, 52, 61):
        with pytest.raises(BadInput, match="reserved bits"):
            decode_descriptor(fields | 1 << bit)
