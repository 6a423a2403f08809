"""The two strictness profiles: the same findings, other severities; and what fails a run."""

import numpy as np
import pytest

from phaseflip import find_kernel, lower, simulate
from phaseflip.errors import BadInput
from phaseflip.findings.finding import errors

CHAPTER = "tests/data/chapter_kernels.py"


@pytest.fixture(scope="module")
def chapter():
    return lower(find_kernel(f"{CHAPTER}:hgemm_v2").build(128, 128, 128))


def run(kernel, **options):
    arrays = [np.zeros((128, 128), np.float16) for _ in range(3)]
    return simulate(kernel, arrays, **options).findings


def test_both_profiles_find_the_same_and_judge_it_apart(chapter):
    strict, lenient = (run(chapter, profile=p) for p in ("ptx", "practice"))

    def places(findings):
        return sorted((f.code, f.memory, f.kind, f.line) for f in findings)

    assert places(strict) == places(lenient)
    assert {f.code for f in errors(strict)} == {"missing-proxy-fence", "missing-tcgen05-fence"}
    assert {(f.code, f.kind) for f in errors(lenient)} == {("missing-proxy-fence", "raw")}


@pytest.mark.parametrize(
    ("checks", "codes"),
    [("none", set()), ("protocol,lifecycle", set()), ("races", {"missing-proxy-fence", "missing-tcgen05-fence"})],
)  # fmt: skip
def test_checks_choose_what_is_looked_for(chapter, checks, codes):
    assert {f.code for f in run(chapter, checks=checks)} == codes


def test_an_unknown_profile_is_refused(chapter):
    with pytest.raises(BadInput, match="ptx and practice"):
        run(chapter, profile="lenient")
