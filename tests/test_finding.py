"""Findings: the table of severities, counting, words, keys for scripts, choice of checks."""

import json

import pytest

from phaseflip.errors import BadInput
from phaseflip.findings.finding import (
    CATEGORIES,
    PROFILES,
    RULES,
    Finding,
    Findings,
    Place,
    agree,
    errors,
    parse_checks,
    render,
)

A, B = Place("ld.shared", "k.py", 7, 3), Place("st.shared", "k.py", 4, 1)
RACE = Finding(
    "race", "no barrier", place=A, other=B, memory="shared", kind="raw", what="a reads what b writes", fix="sync"
)  # fmt: skip


@pytest.mark.parametrize(
    ("who", "verb"),
    [
        ("CTA 0 warp 2", "waits"),
        ("CTA 0 warp 2 lane 5", "waits"),
        ("CTA 0 warp 2 lanes 1-5", "wait"),
        ("CTA 0 warps 0-3", "wait"),
        ("CTA 0 96 threads of warps 1-3", "wait"),
        ("CTA 0 warp 0 and CTA 1 warp 0", "wait"),
    ],
)
def test_a_verb_agrees_with_its_threads(who, verb):
    assert agree(who, "waits", "wait") == verb


def test_every_rule_has_a_category_severities_and_a_source():
    for name, rule in RULES.items():
        assert rule.category in CATEGORIES, name
        assert {rule.ptx, rule.practice} <= {"error", "note"}, name
        assert rule.source, name
        assert name.partition(":")[0] in RULES, f"{name} is a variant of no code"


def test_practice_is_never_stricter_than_ptx():
    for name, rule in RULES.items():
        assert (rule.ptx, rule.practice) != ("note", "error"), name


def test_what_is_a_note_in_practice_only():
    lenient = {name for name, rule in RULES.items() if rule.ptx != rule.practice}
    assert lenient == {
        "missing-proxy-fence:read", "missing-tcgen05-fence", "race:restrict", "scope-too-narrow",
        "peer-not-launched", "out-of-bounds:parity", "peer-exited:commit", "race:equal", "output-overwritten:equal",
        "divergent-collective:parted",
    }  # fmt: skip


def test_the_same_fault_at_the_same_lines_is_one_finding_with_a_count():
    found = Findings()
    for _ in range(3):
        found.add(RACE)
    found.add(Finding("race", "else", place=A, other=A, memory="shared", kind="raw"))
    counts = sorted(f.count for f in found.all())
    assert counts == [1, 3]


def test_two_instructions_on_one_line_are_one_place():
    assert Place("ld.shared", "k.py", 7, 3) == Place("ld.shared", "k.py", 7, 9)
    assert Place("ld.shared", "k.py", 7) != Place("st.shared", "k.py", 7)


@pytest.mark.parametrize(("profile", "severity"), [("ptx", "error"), ("practice", "note")])
def test_severity_follows_the_profile_and_the_variant(profile, severity):
    found = Findings(profile=profile)
    found.add(Finding("missing-proxy-fence", "w", place=A), "read")
    found.add(Finding("missing-proxy-fence", "w", place=B))
    by_line = {f.line: f.severity for f in found.all()}
    assert by_line == {7: severity, 4: "error"}


def test_errors_come_first_then_lines():
    found = Findings(profile="practice")
    found.add(Finding("missing-tcgen05-fence", "w", place=Place("a", "k.py", 1)))
    found.add(Finding("race", "w", place=Place("a", "k.py", 9)))
    found.add(Finding("race", "w", place=Place("a", "k.py", 5)))
    assert [f.line for f in found.all()] == [5, 9, 1]
    assert [f.line for f in errors(found.all())] == [5, 9]


def test_the_report_in_words():
    lines = render(RACE).splitlines()
    assert lines[0] == "error: race shared raw: a reads what b writes"
    assert lines[1] == "  at k.py:7 (ld.shared), against k.py:4 (st.shared)"
    assert lines[2:] == ["  why: no barrier", "  fix: sync"]
    assert str(RACE) == "error: race shared raw at k.py:7: a reads what b writes: no barrier"


def test_the_report_of_several_tells_how_often_and_the_details():
    found = Finding("deadlock", "w", place=A, count=2, details=("one", "two"))
    assert render(found).splitlines()[0] == "error: deadlock (2 times)"
    assert render(found).splitlines()[-2:] == ["    one", "    two"]


def test_keys_that_scripts_rely_on():
    found = json.loads(json.dumps(RACE.to_json()))
    assert found == {
        "code": "race", "severity": "error", "memory": "shared", "kind": "raw", "file": "k.py", "line": 7,
        "mnemonic": "ld.shared", "callers": [], "message": "a reads what b writes: no barrier", "fix": "sync", "count": 1,
            "other": {"file": "k.py", "line": 4, "mnemonic": "st.shared", "callers": []},
    }  # fmt: skip
    alone = Finding("tmem-leak", "w", place=A).to_json()
    assert alone["other"] is None and alone["memory"] is None and alone["kind"] is None


# -- choice of checks -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [("all", set(CATEGORIES)), ("none", set()), ("races", {"races"}), ("races, protocol", {"races", "protocol"})],
)  # fmt: skip
def test_checks_are_chosen_by_category(text, expected):
    assert parse_checks(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("race", "unknown check 'race'"),
        ("races;protocol", "unknown check 'races;protocol'"),
        ("everything", "unknown check 'everything'"),
        ("", "the list of checks '' has an empty name"),
        ("races,,memory", "the list of checks 'races,,memory' has an empty name"),
        ("races,", "'races,' has an empty name"),
        ("all,none", "'all' stands alone"),
        ("races,none", "'none' stands alone"),
    ],
)
def test_checks_that_are_none_are_refused_with_the_known_ones(text, said):
    with pytest.raises(BadInput, match="races, protocol, memory, lifecycle, deadlock") as error:
        parse_checks(text)
    assert said in str(error.value)


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(BadInput, match=" and ".join(PROFILES)):
        Findings(profile="strict")


def test_a_category_that_is_off_records_nothing_but_what_stopped_the_run():
    found = Findings("races")
    assert found.wants_races and not Findings("memory").wants_races
    found.add(Finding("over-arrival", "w", place=A))
    assert found.all() == []
    found.add(Finding("deadlock", "w", place=A), always=True)
    assert [f.code for f in found.all()] == ["deadlock"]


def test_causes_come_before_what_follows_from_them_and_notes_last():
    found = Findings(profile="practice")
    late, early = Place("copy", "k.py", 9), Place("copy", "k.py", 2)
    for kind in ("waw", "war", "raw"):
        found.add(Finding("race", "w", place=early, kind=kind))
    found.add(Finding("scope-too-narrow", "w", place=early))  # a note in this profile
    for code in ("lapped-wait", "deadlock", "tmem-freed-in-use", "peer-exited"):
        found.add(Finding(code, "w", place=early))
    found.add(Finding("over-arrival", "w", place=early, follows=True))
    found.add(Finding("over-arrival", "w", place=late))
    found.add(Finding("race", "w", place=late, kind="raw"))
    found.add(Finding("duplicate-issue", "w", place=late))
    assert [(f.title, f.line) for f in found.all()] == [
        ("duplicate-issue", 9),
        ("over-arrival", 9),
        ("race raw", 2),
        ("race raw", 9),
        ("race war", 2),
        ("race waw", 2),
        ("peer-exited", 2),
        ("tmem-freed-in-use", 2),
        ("over-arrival", 2),
        ("deadlock", 2),
        ("lapped-wait", 2),
        ("scope-too-narrow", 2),
    ]


@pytest.mark.parametrize("first", [True, False])
def test_a_finding_that_does_not_always_follow_is_a_cause(first):
    found = Findings()
    for follows in (first, not first):
        found.add(Finding("over-arrival", "w", place=A, follows=follows))
    assert [(f.follows, f.count) for f in found.all()] == [(False, 2)]
