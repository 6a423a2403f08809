"""Counters of kernels side by side: per block of work, and at a shape that each of them takes."""

import json

import pytest

from phaseflip.cli.main import main
from phaseflip.gemm.compare import MEASURES, Column, compare
from phaseflip.gemm.kernel import find_kernel


@pytest.fixture(scope="module")
def columns():
    return compare(
        [find_kernel(name) for name in ("hgemm_v1", "hgemm_v3", "hgemm_v4")], (256, 128, 128)
    )


def test_each_kernel_runs_at_a_shape_that_it_takes(columns):
    assert [(c.kernel, c.shape, c.blocks, c.passed) for c in columns] == [
        ("hgemm_v1", (128, 128, 64), 1, True),
        ("hgemm_v3", (256, 128, 128), 4, True),
        ("hgemm_v4", (256, 128, 128), 4, True),
    ]


def test_counts_are_per_block_of_work(columns):
    """One block takes four MMAs of K = 16 and both operands, 128 x 64 halves each; TMA moves them in two copies."""
    for c in columns:
        assert c.per_block("MMA instructions") == 4
        assert c.per_block("bytes global -> shared") == 2 * 128 * 64 * 2
    assert [c.per_block("bulk copies") for c in columns] == [
        0,
        0,
        2 + 2 / 2,
    ]  # v4 stores D in two halves
    assert [c.per_block("commits") for c in columns] == [1, 1, 1]


def test_a_row_adds_up_its_counters():
    column = Column(
        "k", (128, 128, 128), True, {"bytes_global_loaded": 6, "bytes_shared_loaded": 4}
    )
    assert column.blocks == 2 and column.per_block("bytes loaded by threads") == 5
    assert column.per_block("commits") == 0


def test_the_command_prints_one_table(capsys):
    assert main(["compare", "128", "128", "64", "--kernels", "hgemm_v1,hgemm_v2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["hgemm_v1", "hgemm_v2"]
    assert lines[-1].split() == ["result", "right", "right"]
    assert main(["compare", "128", "128", "64", "--kernels", "hgemm_v1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kernels"][0]["per_block"].keys() == MEASURES.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["128", "130", "64"], "N is 130"),
        (["128", "128", "0"], "K is 0"),
        (["128", "128", "64", "--kernels", "hgemm_v0"], "hgemm_v0"),
        (["128", "128", "64", "--kernels", ""], "--kernels: '' has an empty name"),
        (["128", "128", "64", "--kernels", "hgemm_v1,"], "'hgemm_v1,' has an empty name"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_sentence(arguments, said, capsys):
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""
