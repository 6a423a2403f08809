"""The generic operators: every mutant is another kernel, sites do not depend on the shape, and what is known of a few."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from phaseflip import BadInput, lower
from phaseflip.faults import Fault, find_fault, mutations
from phaseflip.findings import errors
from phaseflip.frontend.tirx.edit import expressions as tir_nodes
from phaseflip.gemm.kernel import find_kernel
from phaseflip.gemm.verify import verify

OPERATORS = mutations()
SHAPES = {
    "hgemm_v1": (128, 128, 64),
    "hgemm_v2": (128, 128, 192),
    "hgemm_v3": (256, 384, 192),
    "hgemm_v4": (256, 256, 192),
    "hgemm_v5": (256, 256, 192),
    "hgemm_v6:ctas=1": (256, 256, 192),
    "hgemm_v7:ctas=1": (256, 256, 320),
    "hgemm_v8:ctas=1": (512, 512, 192),
    "hgemm_v9:ctas=1": (1024, 512, 192),
    "hgemm_sm90": (256, 256, 512),
}
FEWEST_MUTANTS = 1900
SYNCHRONISING_OF_V2 = 15


@functools.cache
def build(name: str) -> Any:
    return find_kernel(name).build(*SHAPES[name])


@pytest.mark.parametrize("name", SHAPES)
def test_every_mutant_is_distinct_and_differs_from_the_original(name: str) -> None:
    function = build(name)
    seen = {tir_nodes.script(function): "the original"}
    for operator in OPERATORS:
        for site in operator.sites(function):
            text = tir_nodes.script(operator.apply(function, site))
            assert text not in seen, f"{operator.name}@{site.index} is {seen[text]}"
            seen[text] = f"{operator.name}@{site.index}"


def test_there_are_many_mutants() -> None:
    assert sum(len(f.sites(build(name))) for f in OPERATORS for name in SHAPES) >= FEWEST_MUTANTS


@pytest.mark.parametrize("f", OPERATORS, ids=[f.name for f in OPERATORS])
def test_sites_are_the_same_at_every_shape(f: Fault) -> None:
    kernel = find_kernel("hgemm_v3")
    small, large = kernel.build(128, 128, 128), kernel.build(256, 384, 192)
    assert [(s.index, s.line) for s in f.sites(small)] == [
        (s.index, s.line) for s in f.sites(large)
    ]


def test_every_synchronising_instruction_can_be_dropped() -> None:
    sites = find_fault("drop-synchronisation").sites(build("hgemm_v2"))
    assert len(sites) == SYNCHRONISING_OF_V2
    kernel_text = tir_nodes.script(build("hgemm_v2"))
    for word in ("T.cuda.cta_sync", "T.ptx.fence", "T.ptx.mbarrier", "T.ptx.tcgen05"):
        assert kernel_text.count(word) == sum(s.text.startswith(word) for s in sites)


@pytest.mark.parametrize(
    ("operator", "site", "titles"),
    [
        ("drop-state-update", 0, {"uninitialised-read register"}),
        ("narrow-fence", 1, {"missing-proxy-fence shared raw"}),
        ("narrow-collective", 3, {"race shared raw"}),
        ("drop-guard", 4, {"tmem-double-free tmem", "divergent-collective tmem"}),
    ],
)
def test_what_is_reported(operator: str, site: int, titles: set[str]) -> None:
    f = find_fault(operator)
    function = find_kernel("hgemm_v1").build(*SHAPES["hgemm_v1"])
    mutant = f.apply(function, f.sites(function)[site])
    verdict = verify(_as_kernel(mutant), *SHAPES["hgemm_v1"], inputs="integers")
    assert {x.title for x in errors(verdict.run.findings)} == titles


@pytest.mark.parametrize("operator", ["narrow-collective", "narrow-tile-scope"])
def test_one_warpgroup_is_the_whole_cta(operator: str) -> None:
    """Narrowing to a warpgroup changes nothing where the CTA has one: an equivalent mutant."""
    f = find_fault(operator)
    function = find_kernel("hgemm_v1").build(*SHAPES["hgemm_v1"])
    mutant = f.apply(function, f.sites(function)[0])
    verdict = verify(_as_kernel(mutant), *SHAPES["hgemm_v1"], inputs="integers", gate="all")
    assert verdict.passed, verdict.message


def test_what_tvm_refuses_is_bad_input() -> None:
    """An invalid mutant: a TMEM load is made by four warps."""
    f = find_fault("narrow-tile-scope")
    function = build("hgemm_v2")
    load = next(s for s in f.sites(function) if "copy_async" in s.text)
    with pytest.raises(BadInput, match="cannot lower the kernel"):
        lower(f.apply(function, load))


def _as_kernel(mutant: Any) -> Any:
    from dataclasses import replace

    return replace(find_kernel("hgemm_v1"), factory=lambda M, N, K: mutant)


def test_the_survivors_document_names_sites_that_exist() -> None:
    """Its cells are "site: line", or more of them; the counts are those that its text gives."""
    text = (Path(__file__).parent.parent / "docs" / "survivors.md").read_text()
    names = list(SHAPES)
    groups = {
        "v1 to v3": names[:3],
        "v4 to v7": names[3:7],
        "v8 and v9": names[7:9],
        "sm90": names[9:],
    }
    sections = text.split("\n## ")[1:]
    assert [section.split("\n")[0] for section in sections] == list(groups)
    for section, kernels in zip(sections, groups.values(), strict=True):
        survivors, invalid = section.split("\n### Invalid")
        header = f"| operator | instruction | {' | '.join(map(_short, kernels))} |"
        assert header in survivors and header in invalid
        assert f"the {_sites_named(survivors, kernels)} below survive" in survivors
        assert f"{_sites_named(invalid, kernels)} are invalid" in survivors
        mutants = sum(len(f.sites(build(kernel))) for f in OPERATORS for kernel in kernels)
        assert f"{mutants} distinct mutants" in survivors


def _short(kernel: str) -> str:
    return kernel.removeprefix("hgemm_").partition(":")[0]


def _sites_named(section: str, kernels: list[str]) -> int:
    """How many sites the tables of a section name; each exists, and stands where its row says."""
    total = 0
    for row in section.splitlines():
        operator, instruction, *cells = [cell.strip() for cell in row.split("|")[1:-1]] or ["", ""]
        if not instruction.startswith("`"):
            continue
        for kernel, cell in zip(kernels, cells[:-1], strict=True):
            for entry in filter(None, cell.split(", ")):
                number, line = map(int, entry.split(":"))
                site = find_fault(operator).sites(build(kernel))[number]
                source = Path(site.file).read_text().splitlines()[line - 1].strip()
                assert site.line == line and source.startswith(instruction.strip("`")), row
                total += 1
    return total
