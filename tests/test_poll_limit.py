"""Waits of CUDA source with a limit: which loops get one, what is left alone, and that ptxas takes the result."""

from __future__ import annotations

import re

import pytest

from phaseflip.errors import BadInput
from phaseflip.frontend.tirx.lowering import generated
from phaseflip.gemm.kernel import find_kernel
from phaseflip.gpu.nvcc import compile_cubin
from phaseflip.gpu.poll_limit import GO_ON, MOST_MS, check_poll_limit, limit_polls
from tests.test_build import needs_nvcc

LOOP = """asm volatile("{\\n"
        "AGAIN:\\n"
        "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\\n"
        "@P1 bra.uni DONE;\\n"
        "bra.uni AGAIN;\\n"
        "DONE:\\n" "}\\n" :: "r"(a), "r"(p));"""


def assert_in_order(lines: list[str], patterns: tuple[str, ...]) -> None:
    """Each pattern matches a line, and the first that it matches comes after those of the patterns before."""
    order = [
        next(i for i, line in enumerate(lines) if re.match(pattern, line)) for pattern in patterns
    ]
    assert order == sorted(order)


def test_the_trap_comes_between_a_try_that_failed_and_the_next() -> None:
    lines = [line.strip().strip('"') for line in limit_polls(LOOP, 250).splitlines()]
    assert_in_order(
        lines,
        (
            r"mov\.u64 +SINCE, 0",
            r"AGAIN:",
            r"mbarrier\.try_wait",
            r"@P1 bra",
            r"mov\.u64 +NOW, %%globaltimer",
            r"@FIRST mov\.u64 +SINCE, NOW",
            r"sub\.u64 +NOW, NOW, SINCE",
            r"setp\.gt\.u64 +LATE, NOW, 250000000;",
            r"@LATE +trap",
            r"bra\.uni AGAIN",
        ),
    )


def test_a_launch_that_gave_up_waits_no_more() -> None:
    """After a try that failed: late ones name their grid; whoever belongs to the grid so named goes on."""
    limited = limit_polls(LOOP, 250, GO_ON)
    head, *lines = [line.strip().strip('"') for line in limited.splitlines()]
    assert head.startswith("__device__ unsigned long long phaseflip_gave_up = ~0ull;")
    assert_in_order(
        lines,
        (
            r"@P1 bra",
            r"setp\.gt\.u64 +LATE, NOW, 250000000;",
            r"mov\.u64 +GRID, %%gridid;",
            r"@LATE st\.volatile\.global\.u64 \[phaseflip_gave_up\], GRID;",
            r"ld\.volatile\.global\.u64 +NOW, \[phaseflip_gave_up\];",
            r"setp\.eq\.u64 +LATE, NOW, GRID;",
            r"@LATE mov\.pred +phaseflip_signals, 0;",
            r"@LATE bra +DONE;",
            r"bra\.uni AGAIN",
        ),
    )
    assert "trap" not in limited


def test_a_thread_that_gave_up_signals_no_mbarrier() -> None:
    signals = (
        "mbarrier.arrive.shared.b64 _, [%0];",
        "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];",
    )
    others = (
        "mbarrier.init.shared.b64 [%0], %1;",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];",
        "bar.sync %0, 128;",
    )
    body = "".join(f'asm volatile("{text}" ::: "memory");\n' for text in signals + others)
    kernel = f'extern "C" __global__ void k();\nextern "C" __global__ void k() {{\n{body}}}\n'
    limited = limit_polls(kernel, 100, GO_ON)
    head, declared, *lines = limited.partition("void k() {")[2].splitlines()
    assert not head and ".reg .pred phaseflip_signals;" in declared
    assert re.findall(r'"mov\.pred phaseflip_signals, 1;', declared)
    guard = "@phaseflip_signals "
    wanted = [*(guard + text for text in signals), *others]
    assert [line.split('"')[1] for line in lines[: len(wanted)]] == wanted
    assert guard not in limit_polls(kernel, 100)


@pytest.mark.parametrize("hint", ["", ", %2"])
def test_tries_that_are_many_are_short(hint: str) -> None:
    source = LOOP.replace("[%0], %1;", f"[%0], %1{hint};")
    short = ", 100000" if hint else ""
    assert f"P1, [%0], %1{short};" in limit_polls(source, 250, GO_ON)
    assert f"P1, [%0], %1{hint};" in limit_polls(source, 250)


def test_no_limit_changes_nothing() -> None:
    assert limit_polls(LOOP, 0) is LOOP


def test_a_single_try_is_no_loop() -> None:
    once = '"mbarrier.try_wait.parity.shared::cta.b64 P1, [%1], %2, %3;\\n"\n"selp.u32 %0, 1, 0, P1;\\n"'
    assert limit_polls(once, 100) == once


def test_a_loop_of_another_form_is_refused() -> None:
    other = LOOP.replace("bra.uni AGAIN", "@!P1 bra AGAIN")
    with pytest.raises(BadInput, match="1 of the waits .* have a form that no poll limit is known"):
        limit_polls(other, 100)


@pytest.mark.parametrize("limit_ms", [-1, MOST_MS + 1])
def test_a_limit_out_of_range(limit_ms: int) -> None:
    with pytest.raises(BadInput, match=f"0 \\(none\\) to {MOST_MS} ms, and {limit_ms} is not"):
        check_poll_limit(limit_ms)


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "arch", "shape"),
    [("hgemm_sm90", "sm_90a", (128, 128, 64)), ("hgemm_v9", "sm_100a", (512, 256, 64))],
)
def test_every_wait_of_a_kernel_is_limited(
    name: str, arch: str, shape: tuple[int, int, int]
) -> None:
    """Both of TVM's waits: `wait` of its barriers, and the one that acquires at cluster scope."""
    _, source = generated(find_kernel(name).build(*shape), arch)
    waits = len(re.findall(r"mbarrier\.try_wait", source))
    limited = limit_polls(source, 100)
    assert waits == limited.count("trap;") == 1
    before, *after = (
        compile_cubin(text, arch) for text in (source, limited, limit_polls(source, 100, GO_ON))
    )
    for cubin in after:
        assert before.code != cubin.code
        (used,) = cubin.resources.values()
        assert used["spill_store_bytes"] == 0
