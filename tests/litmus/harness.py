"""Run a litmus kernel with and without a synchronisation, under many schedules, and compare what is found.

Five random schedules, or twenty with PHASEFLIP_ACCEPTANCE=full.

A litmus kernel is a factory `kernel(sync=True, ...)` that returns a PrimFunc; its flags leave synchronisations out. A
finding is written "race shared raw @load <store": code, memory, kind, the line of the reported access and that of the
other one, by the comments at the ends of those lines. A leading "?" marks a note, a "~" what is a note in profile
practice only.

The variants that a test wants to be silent are noted at the factory, so that `python -m phaseflip conformance --programs`
runs them on a GPU too.
"""

import functools
import inspect
import os
import re

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.conformance.generated_text import in_cta

__all__ = ["SCHEDULES", "check", "found", "gives", "in_cta", "line_of", "requires", "run"]

SEEDS = 20 if os.environ.get("PHASEFLIP_ACCEPTANCE") == "full" else 5
SCHEDULES = ("in-order", "eager", "lazy", *(f"random:{seed}" for seed in range(SEEDS)))
PROFILES = {"ptx": SCHEDULES, "practice": ("in-order", "random:1")}


def requires(factory, flag, *expected, notes=(), **others):
    """A test: `factory` is silent as it stands, and gives exactly the `expected` findings when `flag` is off.

    `notes` are findings (with "?") that stay when the flag is on; `others` are flags of both variants.
    """

    _correct(factory, others | {flag: True})
    for present in (True, False):
        _note(factory, others | {flag: present})

    @pytest.mark.parametrize("present", [True, False], ids=["present", "missing"])
    def test(present):
        check(factory, notes if present else expected, **others, **{flag: present})

    return test


def gives(factory, *expected, **flags):
    """A test: the kernel gives exactly these findings (none: it is silent)."""
    _note(factory, flags)
    if not expected:
        _correct(factory, flags)
    return lambda: check(factory, expected, **flags)


PROGRAMS = {}
"""(factory, flags that differ from their defaults) of every variant that a test of the imported modules names."""


def _note(factory, flags):
    PROGRAMS[factory, _changed(factory, flags)] = None


def _correct(factory, flags):
    """Note a variant that is silent."""
    variants = vars(factory).setdefault("variants", [])
    changed = dict(_changed(factory, flags))
    if changed not in variants:
        variants.append(changed)


def check(factory, expected, **flags):
    """Exactly these findings under every schedule and in both profiles."""
    results = _results(factory, _changed(factory, flags))
    for profile in PROFILES:
        wanted = sorted(_parse(factory, text, profile) for text in expected)
        assert results[profile] == dict.fromkeys(results[profile], wanted)


@functools.lru_cache(maxsize=64)
def _results(factory, flags):
    """Profile -> schedule -> what is found."""
    return {
        profile: {s: found(factory, s, profile, **dict(flags)) for s in schedules}
        for profile, schedules in PROFILES.items()
    }


def _changed(factory, flags):
    """The flags that differ from their defaults: what names a variant of the kernel."""
    defaults = inspect.signature(factory).parameters
    return tuple(sorted((k, v) for k, v in flags.items() if defaults[k].default != v))


def found(factory, schedule, profile="ptx", **flags):
    """ "severity: code memory kind @file:line <file:line" of every finding, sorted; each says why, and what mends it."""
    findings = run(factory, schedule, profile, **flags).findings
    assert all(f.why and f.fix for f in findings), findings
    return sorted(
        _text(f.severity, f.title, str(f.place), None if f.other is None else str(f.other))
        for f in findings
    )


def _text(severity, title, place, other):
    return f"{severity}: {title} @{place}" + ("" if other is None else f" <{other}")


def run(factory, schedule="in-order", profile="ptx", **flags):
    """One simulation; every buffer starts as zeros."""
    lowered = _lowered(factory, _changed(factory, flags))
    arrays = [np.zeros(shape, dtype) for _, dtype, shape in lowered.parameters]
    return simulate(lowered, arrays, schedule, profile=profile)


def line_of(factory, mark):
    """Line of the file on which a comment of the factory's source says `mark`."""
    lines, first = inspect.getsourcelines(factory)
    (at,) = (i for i, text in enumerate(lines) if re.search(rf"#.*\b{mark}\b", text))
    return first + at


@functools.lru_cache(maxsize=8)
def _lowered(factory, flags):
    return lower(factory(**dict(flags)))


_FINDING = re.compile(r"(?P<sign>[?~]?)(?P<title>[^@]+?) @(?P<at>\w+)(?: <(?P<other>\w+))?")


def _parse(factory, text, profile):
    match = _FINDING.fullmatch(text)
    assert match is not None, text
    note = match["sign"] == "?" or (match["sign"] == "~" and profile == "practice")
    file = inspect.getsourcefile(factory)
    at, other = (
        None if match[g] is None else f"{file}:{line_of(factory, match[g])}"
        for g in ("at", "other")
    )
    return _text("note" if note else "error", match["title"], at, other)
