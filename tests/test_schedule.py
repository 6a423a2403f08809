"""Schedules by name, and what each of them picks."""

import pytest

from phaseflip.errors import BadInput
from phaseflip.run.schedule import parse_schedule


@pytest.mark.parametrize(
    "name", ["in-order", "eager", "lazy", "random:0", "random:7", "random:123456789"]
)
def test_a_name_replays_its_schedule(name):
    schedule = parse_schedule(name)
    assert schedule.name == name
    choices = [schedule.pick(3, 2) for _ in range(50)]
    again = parse_schedule(schedule.name)
    assert [again.pick(3, 2) for _ in range(50)] == choices


@pytest.mark.parametrize(
    "name", ["", "random", "random:", "random:x", "random:-1", "random:1.5", "In-Order", "lazy:3", "fast"]
)  # fmt: skip
def test_an_unknown_schedule_is_refused_with_the_legal_ones(name):
    with pytest.raises(BadInput) as error:
        parse_schedule(name)
    message = str(error.value)
    assert all(word in message for word in ("in-order", "eager", "lazy", "random:"))
    assert "\n" not in message


@pytest.mark.parametrize(("groups", "landings"), [(1, 0), (0, 1), (3, 2), (1, 1)])
def test_picks_are_in_range(groups, landings):
    for name in ("in-order", "eager", "lazy", "random:3"):
        schedule = parse_schedule(name)
        for _ in range(30):
            assert 0 <= schedule.pick(groups, landings) < groups + landings


def test_in_order_lands_first_and_lazy_runs_first():
    assert parse_schedule("in-order").pick(3, 2) == 3
    assert parse_schedule("in-order").pick(3, 0) == 0
    assert parse_schedule("lazy").pick(3, 2) == 0
    assert parse_schedule("lazy").pick(0, 2) == 0


def test_only_random_runs_warps_apart_and_only_eager_lands_at_once():
    names = ["in-order", "eager", "lazy", "random:1"]
    assert [parse_schedule(n).by_warp for n in names] == [False, False, False, True]
    assert [parse_schedule(n).eager for n in names] == [False, True, False, False]


def test_seeds_differ():
    schedules = [parse_schedule(f"random:{seed}") for seed in range(5)]
    assert len({tuple(s.pick(4, 0) for _ in range(20)) for s in schedules}) == 5


@pytest.mark.parametrize("name", ["random:²", "random:٣"])
def test_digits_that_are_no_numbers_are_refused_in_words(name):
    with pytest.raises(BadInput):
        parse_schedule(name)


@pytest.mark.parametrize(
    ("text", "held", "free"),
    [
        ("in-order+delay:cta1", [(1, 0), (1, 7)], [(0, 0), (2, 5)]),
        ("lazy+delay:warps4-7", [(0, 4), (1, 7)], [(0, 3), (1, 8)]),
        ("random:7+delay:cta0.warp3", [(0, 3)], [(1, 3), (0, 2)]),
        ("eager+delay:warp0+delay:cta1", [(0, 0), (1, 5)], [(0, 5)]),
    ],
)
def test_a_delay_names_threads_by_cta_and_warp(text, held, free):
    schedule = parse_schedule(text)
    assert schedule.name == text and schedule.by_warp

    def holds(rank, warp):
        return any(delay.holds(rank, warp) for delay in schedule.delays)

    assert [holds(*who) for who in held] == [True] * len(held)
    assert [holds(*who) for who in free] == [False] * len(free)


@pytest.mark.parametrize(
    "text", ["in-order+delay:", "lazy+delay", "lazy+delay:warp", "lazy+", "lazy+delay:cta1warps2", "lazy+delay:warps3-"]
)  # fmt: skip
def test_an_unknown_delay_is_refused_with_the_legal_forms(text):
    with pytest.raises(BadInput, match=r"a delay is delay:cta1, delay:warp3, delay:warps4-7"):
        parse_schedule(text)
    assert parse_schedule("lazy").delays == ()


@pytest.mark.parametrize("text", ["in-order+delay:warps7-4", "lazy+delay:cta0.warps7-4"])
def test_a_delay_of_an_empty_range_is_refused(text):
    with pytest.raises(
        BadInput, match="names no warp; the first of a range comes first, as in warps4-7"
    ):
        parse_schedule(text)
    assert parse_schedule("lazy+delay:warps4-4").delays[0].warps == (4, 4)
