"""Every declared fault: its example, its sites, its mutants; and the registry. All derived from the registry."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from phaseflip import BadInput
from phaseflip.faults import (
    Example,
    Fault,
    Site,
    as_expected,
    as_studied,
    catalogue,
    fault,
    find_fault,
    is_title,
    matching,
    mutations,
    no_op,
    shapes_for,
)  # fmt: skip
from phaseflip.faults.fault import FAULTS
from phaseflip.findings import RULES, Finding
from phaseflip.frontend.tirx.edit import expressions as tir_nodes
from phaseflip.frontend.tirx.lowering import generated
from phaseflip.gemm.kernel import find_kernel, list_kernels
from phaseflip.gemm.verify import verify

CATALOGUE = catalogue()
ALL = [*CATALOGUE, *mutations(), no_op()]
SECTION_OF_SEED_KERNELS = """
missing-phase-flip initial-phase-one missing-load-sync missing-mma-wait missing-proxy-fence missing-reuse-fence
missing-after-fence missing-wait-ld commit-by-whole-warp mma-by-whole-warp mma-by-four-warps commit-before-mma
missing-commit barrier-count-two missing-barrier-init missing-init-sync accumulate-always accumulate-never short-k-loop
repeated-k-chunk swapped-tile-index row-stripe-swap missing-final-sync missing-dealloc dealloc-half alloc-by-one-lane
alloc-odd-columns sync-in-warp-branch wrong-swizzle operand-overlap
""".split()


ROWS = [
    ("expect-too-few", "v4-v6"), ("expect-too-many", "v4-v6"), ("expect-without-arrive", "v4-v6"),
    ("load-by-every-warp", "v4-v6"), ("refill-before-wait", "v5-v6"), ("ring-parity-on-single-slot", "v5-v6"),
    ("flip-on-wrong-stage", "v5-v6"), ("odd-rounds-parity-reset", "v6"), ("shared-stage-barrier", "v5-v6"),
    ("store-without-fence", "v4-v6"), ("store-without-sync", "v4-v6"), ("store-not-drained", "v6"),
    ("store-drained-by-one", "v6"), ("lapped-waiter", "v4-v6"), ("box-too-wide", "v4-v6"),
    ("scheduler-drops-band", "v6"),
    ("both-phases-zero", "v7-v9"), ("consumer-not-advanced", "v7-v9"), ("producer-advanced-twice", "v7-v9"),
    ("arrive-by-one-thread", "v7-v9"), ("arrive-before-wait-ld", "v7-v9"), ("release-not-awaited", "v7-v9"),
    ("init-in-role-branch", "v7-v9"), ("init-per-warpgroup", "v7-v9"), ("cta-sync-in-role", "v7-v9"),
    ("next-tile-skipped", "v7-v9"), ("k-count-differs", "v7-v9"), ("dealloc-per-warpgroup", "v7-v9"),
    ("no-cluster-sync-after-init", "v8-v9"), ("cta-scope-on-cluster", "v8-v9"), ("exit-before-peer", "v8-v9"),
    ("local-instead-of-remote", "v8-v9"), ("bytes-not-times-two", "v8-v9"), ("named-barrier-clash", "v9"),
    ("consumers-share-columns", "v9"), ("consumer-reads-other-half", "v9"), ("columns-past-512", "v9"),
    ("no-cluster-sync-before-alloc", "v8-v9"),
]  # fmt: skip


def names(faults: list[Fault]) -> list[str]:
    return [f.name for f in faults]


@pytest.fixture(scope="module")
def gemm() -> Any:
    return find_kernel("hgemm_v2").build(128, 128, 128)


def test_the_catalogue_has_every_row_of_the_seed_kernels() -> None:
    assert set(SECTION_OF_SEED_KERNELS) <= set(names(CATALOGUE))


@pytest.mark.parametrize(("row", "kernels"), ROWS)
def test_the_catalogue_has_every_row_of_the_pipelined_kernels(row: str, kernels: str) -> None:
    first, _, last = kernels.removeprefix("v").partition("-v")
    numbers = range(int(first), int(last or first) + 1)
    named = tuple(k for k in find_fault(row).kernels if k != "hgemm_sm90")
    assert named == tuple(f"hgemm_v{n}" for n in numbers)


@pytest.mark.parametrize("f", ALL, ids=names(ALL))
def test_example(f: Fault) -> None:
    """The fault does to the kernel of its example exactly what the example says."""
    example = f.example
    assert example is not None, f"{f.name} has no example"
    original = find_kernel(example.kernel).build(*example.shape)
    before = tir_nodes.script(original)
    site = f.sites(original)[example.site]
    mutant = f.apply(original, site)
    assert example.describes(before, tir_nodes.script(mutant)), tir_nodes.script(mutant)
    assert tir_nodes.script(original) == before, "apply changed its argument"


@pytest.mark.parametrize("f", ALL, ids=names(ALL))
def test_sites_name_lines_of_the_kernel(f: Fault) -> None:
    kernels = [k for k in list_kernels() if f.applies_to(k.name)]
    found = {}
    for kernel in kernels:
        function = kernel.build(*shapes_for(f, kernel)[0])
        found[kernel.name] = f.sites(function)
        assert f.sites(function) == found[kernel.name]  # the same every time
        for i, site in enumerate(found[kernel.name]):
            assert site.index == i and site.text
            assert site.file.endswith(f"{kernel.name}.py") and site.line > 30
    assert any(found.values()), f"{f.name} has no site in any kernel"
    for name in f.kernels:
        assert found[name], f"{f.name} has no site in {name}, for which it is catalogued"


@pytest.mark.parametrize("f", CATALOGUE, ids=names(CATALOGUE))
def test_a_mutant_compiles_to_other_code(f: Fault) -> None:
    kernel = find_kernel(f.kernels[0])
    original = kernel.build(*shapes_for(f, kernel)[0])
    mutant = f.apply(original, f.sites(original)[0])
    assert generated(mutant) != code_of(f.kernels[0], shapes_for(f, kernel)[0])


@functools.cache
def code_of(kernel: str, shape: tuple[int, int, int]) -> tuple[str, str]:
    """The code of the original: host part (it encodes the tensor maps) and device part."""
    return generated(find_kernel(kernel).build(*shape))


def test_no_op_changes_nothing(kernel: Any) -> None:
    """The control: the same TVMScript, the same CUDA source, nothing reported."""
    assert kernel.shape_rule is not None
    original = kernel.build(*kernel.shape_rule.nearest(128, 128, 128))
    [site] = no_op().sites(original)
    same = no_op().apply(original, site)
    assert tir_nodes.script(same) == tir_nodes.script(original)
    assert generated(same) == generated(original)
    assert no_op().expected == ()


@pytest.mark.parametrize("f", CATALOGUE, ids=names(CATALOGUE))
def test_catalogue_says_what_is_expected_and_where(f: Fault) -> None:
    assert f.kernels and f.expected and f.sentence.endswith(".")
    assert 1 <= f.chunks <= 6 and len(f.sentence) < 120
    for title in (t for alternative in f.expected for t in alternative):
        assert title.split()[0] in RULES


# --- the registry --------------------------------------------------------------------------------


def test_find_fault() -> None:
    assert find_fault("missing-commit").name == "missing-commit"
    with pytest.raises(BadInput, match=r"did you mean missing-commit.*known are .*dealloc-half"):
        find_fault("mising-commit")
    with pytest.raises(BadInput, match="unknown fault 'x'; known are"):
        find_fault("x")


def test_every_file_of_faults_is_found() -> None:
    assert (len(CATALOGUE), len(mutations())) == (75, 25)  # one file not found would be many less


def test_kinds_do_not_mix() -> None:
    assert {f.kind for f in catalogue()} == {"catalogue"}
    assert {f.kind for f in mutations()} == {"mutation"} and no_op().kind == "control"
    assert all(f.expected == () and f.kernels == () for f in mutations())
    assert len(set(names(ALL))) == len(ALL) == len(FAULTS)


def test_declaring_a_fault_registers_it_once() -> None:
    def find(code: Any) -> Any:
        return iter(())

    try:
        made = fault("a-test-fault", "Nothing.", expected=[("race shared raw",)])(find)
        assert find_fault("a-test-fault") is made and made.expected == (("race shared raw",),)
        with pytest.raises(ValueError, match="declared twice"):
            fault("a-test-fault", "Nothing.")(find)
    finally:
        FAULTS.pop("a-test-fault", None)
    with pytest.raises(ValueError, match="unknown finding 'rac shared'"):
        fault("another", "Nothing.", expected=[("rac shared",)])(find)
    with pytest.raises(ValueError, match="unknown kind 'typo'"):
        fault("another", "Nothing.", kind="typo")(find)
    assert "another" not in FAULTS


def test_a_site_that_is_not_there_is_bad_input(gemm: Any) -> None:
    f = find_fault("missing-commit")
    [site] = f.sites(gemm)
    with pytest.raises(BadInput, match="has 1 site here, and none is number 1"):
        f.apply(gemm, Site(1, site.text, site.file, site.line))
    with pytest.raises(
        BadInput, match=rf"site 0 of missing-commit is .*commit.* in line {site.line} here"
    ):
        f.apply(gemm, Site(0, "T.cuda.cta_sync()", site.file, site.line))


def test_a_users_kernel_has_sites_too() -> None:
    chapter = find_kernel("tests/data/chapter_kernels.py:hgemm_v2")
    function = chapter.build(128, 128, 128)
    f = find_fault("missing-phase-flip")
    [site] = f.sites(function)
    assert site.file.endswith("chapter_kernels.py") and "phase_mma" in site.text
    assert not f.applies_to(chapter.name)  # it is catalogued for others; its sites say that it fits
    assert find_fault("drop-guard").applies_to(chapter.name)


def test_lines_are_the_site_and_what_it_affects(gemm: Any) -> None:
    f = find_fault("missing-load-sync")
    [site] = f.sites(gemm)
    lines = f.lines(gemm, site)
    assert site.line in lines and len(lines) == 5  # two loads, the MMA, the copy to D
    assert find_fault("dealloc-half").lines(gemm, find_fault("dealloc-half").sites(gemm)[0]) == {
        find_fault("dealloc-half").sites(gemm)[0].line
    }


# --- what was expected ---------------------------------------------------------------------------

STALE = Finding("stale-wait", "why")
RACE = Finding("race", "why", memory="tmem", kind="raw")


def test_a_title_matches_a_more_precise_one() -> None:
    assert is_title("race shared raw", "race") and is_title("race shared raw", "race shared raw")
    assert is_title("race shared raw", "race shared") and not is_title(
        "race shared raw", "race tmem"
    )
    assert not is_title("race", "race shared") and not is_title("races", "race")


def test_all_titles_of_an_alternative_must_be_found() -> None:
    flip = find_fault("missing-phase-flip")  # stale-wait and race
    assert as_expected(flip, [STALE, RACE]) and matching(flip, [STALE, RACE]) == (
        "stale-wait",
        "race",
    )
    assert not as_expected(flip, [STALE]) and not as_expected(flip, [RACE])
    init = find_fault("missing-wait-ld")  # one or the other
    assert as_expected(init, [Finding("uninitialised-read", "why", memory="register")])
    assert as_expected(init, [Finding("race", "why", memory="register", kind="raw")])


def test_a_note_does_not_count() -> None:
    note = Finding("missing-tcgen05-fence", "why", severity="note")
    assert not as_expected(find_fault("missing-after-fence"), [note])


def test_a_failed_oracle_counts_as_the_finding_it_stands_for() -> None:
    f = find_fault("accumulate-never")
    assert not as_expected(f, [], [])
    for oracle in ("tolerance", "bound", "exact"):
        assert as_expected(f, [], [oracle])
    assert not as_expected(f, [], ["unwritten-output"])
    assert as_expected(find_fault("swapped-tile-index"), [], ["unwritten-output"])


def test_nothing_is_expected_of_mutations_and_control() -> None:
    assert not as_expected(no_op(), [STALE], ["bound"])
    assert not as_expected(find_fault("drop-guard"), [STALE], ["bound"])


def test_a_persistent_kernel_is_studied_in_one_cta() -> None:
    v3, v6, own = (find_kernel(name) for name in ("hgemm_v3", "hgemm_v6", "hgemm_v6:ctas=3"))
    assert as_studied(v3) is v3 and as_studied(own) is own
    assert as_studied(v6) is find_kernel("hgemm_v6:ctas=1")
    reset = find_fault("odd-rounds-parity-reset")
    assert reset.applies_to("hgemm_v6:ctas=1") and not reset.applies_to("hgemm_v7:ctas=1")


def test_shapes_for() -> None:
    v1, v2, v3 = (find_kernel(f"hgemm_v{i}") for i in (1, 2, 3))
    commit, flip = find_fault("missing-commit"), find_fault("missing-phase-flip")
    assert shapes_for(commit, v1) == [(128, 128, 64)]
    assert shapes_for(commit, v2) == [(128, 128, 64), (128, 128, 256), (128, 128, 192)]
    assert shapes_for(flip, v2) == [(128, 128, 128), (128, 128, 256), (128, 128, 192)]
    assert shapes_for(flip, v3) == [(128, 128, 128), (128, 128, 256), (256, 384, 192)]
    swapped = find_fault("swapped-tile-index")
    assert shapes_for(swapped, v3) == [(128, 256, 64), (256, 384, 192)]
    assert shapes_for(find_fault("odd-rounds-parity-reset"), find_kernel("hgemm_v6")) == [
        (128, 256, 192), (256, 384, 192),
    ]  # fmt: skip
    with pytest.raises(BadInput, match="has no shape rule; give the shapes"):
        shapes_for(flip, find_kernel("tests/data/chapter_kernels.py:hgemm_v2"))


# --- examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        ("b", "x", True), ("c", "x", False), ("b\nc", "x\nc", True), ("a\n...\nc", "a\n...\nc", True),
        ("b", "y", False), ("...b", "x...", True), ("  b", "  x", True),
    ],
)  # fmt: skip
def test_example_matching(before: str, after: str, holds: bool) -> None:
    assert Example(before, after).describes("a\nb\nc\n", "a\nx\nc\n") is holds


def test_example_sees_indentation_and_further_changes() -> None:
    inside, outside = "if a:\n    b\n    c\n", "if a:\n    b\nc\n"
    assert Example("if a:\n    b\n    c", "if a:\n    b\nc").describes(inside, outside)
    assert not Example("b\nc", "b").describes(inside, outside)
    assert not Example("b", "x").describes("a\nb\nc\n", "z\nx\nc\n")


def test_the_control_is_silent_on_one_kernel() -> None:
    verdict = verify(find_kernel("hgemm_v1"), 128, 128, 64)
    assert verdict.passed, verdict.message
