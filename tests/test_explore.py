"""Exploring all interleavings: what commutes, how many runs the classic examples take, and that a difference replays."""

import json

import numpy as np
import pytest

from phaseflip import simulate
from phaseflip.cli.main import main
from phaseflip.errors import BadInput
from phaseflip.run.dependence import Footprint, independent
from phaseflip.run.explore import Explorer, Node, advance
from phaseflip.run.interleaving import Event
from phaseflip.run.schedule import parse_schedule
from tests.litmus import harness
from tests.litmus.test_tcgen05 import product
from tests.litmus.test_warp_instructions import meeting


def footprint(reads=0, writes=0):
    return Footprint([], {"x": (reads, writes)})


def interleavings(threads):
    """How many runs exploring takes for threads that are lists of footprints, and the orders of the runs."""
    nodes, orders, tried = [], [], 0
    while True:
        explorer, at = Explorer(0, 0, nodes), [0] * len(threads)
        tried += 1
        while enabled := [("t", i) for i, done in enumerate(at) if done < len(threads[i])]:
            try:
                agent = enabled[explorer.choose(enabled, 0)]
            except Exception as error:
                assert type(error).__name__ == "Redundant"
                break
            explorer.events.append(Event(agent, threads[agent[1]][at[agent[1]]]))
            at[agent[1]] += 1
        else:
            orders.append([e.agent[1] for e in explorer.events])
        if not advance(nodes, explorer):
            return tried, orders


def test_threads_that_share_nothing_take_one_run():
    apart = [[footprint(writes=1 << i)] * 3 for i in range(4)]
    assert interleavings(apart)[0] == 1


def test_readers_commute_and_writers_do_not():
    assert len(interleavings([[footprint(reads=1)]] * 4)[1]) == 1
    assert len(interleavings([[footprint(writes=1)]] * 4)[1]) == 24


def test_a_writer_and_readers_take_as_many_runs_as_there_are_outcomes():
    # Abdulla et al. 2014: each of n readers sees the old value or the new one
    for n in (1, 2, 3, 4):
        threads = [[footprint(writes=1)], *[[footprint(reads=1)]] * n]
        assert len(interleavings(threads)[1]) == 2**n


@pytest.mark.parametrize("seed", range(30))
def test_every_class_of_orders_is_run_exactly_once(seed):
    random = np.random.default_rng(seed)
    threads = [
        [footprint(*(int(m) for m in random.integers(0, 8, 2) & random.integers(0, 8, 2))) for _ in range(2)]
        for _ in range(3)
    ]  # fmt: skip
    wanted = {outcome(threads, order) for order in all_orders([2, 2, 2])}
    orders = interleavings(threads)[1]
    assert len(orders) == len({outcome(threads, o) for o in orders})
    assert {outcome(threads, o) for o in orders} == wanted


def all_orders(left):
    if not any(left):
        yield []
    for i, n in enumerate(left):
        if n:
            for rest in all_orders([m - (j == i) for j, m in enumerate(left)]):
                yield [i, *rest]


def outcome(threads, order):
    """The order of every pair of dependent steps: what tells the classes of orders apart."""
    at, steps = [0] * len(threads), []
    for i in order:
        steps.append((i, at[i]))
        at[i] += 1
    return frozenset(
        (a, b)
        for n, a in enumerate(steps)
        for b in steps[n + 1 :]
        if a[0] != b[0] and not independent(threads[a[0]][a[1]], threads[b[0]][b[1]])
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("arrive", 0), ("end", 0), True),
        (("arrive", 0), ("arrive", 1), False),
        (("fault", None), ("arrive", 0), False),
        (("finish", 0), ("arrive", 1), True),
        (("finish", 0), ("end", 1), False),
        (("use", None), ("end", 0), True),
        (("use", None), ("init", None), False),
        (("expect", None), ("arrive", 0), False),
    ],
)
def test_uses_of_an_mbarrier_that_commute(one, other, same):
    a, b = (Footprint([(("mbarrier", "full"), *use)], {}) for use in (one, other))
    assert independent(a, b) == independent(b, a) == same


def run(schedule, factory=meeting, flags=(), **options):
    lowered = harness._lowered(factory, flags)
    arrays = [np.zeros(shape, dtype) for _, dtype, shape in lowered.parameters]
    return simulate(lowered, arrays, schedule, **options)


def test_an_output_that_tells_the_elected_lane_differs_and_its_schedule_replays_it():
    found = run("explore")
    assert found.explored.verdict == "different" and found.explored.what == "other values in D"
    replayed = run(found.explored.difference)
    assert replayed.schedule == found.explored.difference
    assert not np.array_equal(replayed.outputs["D"], found.outputs["D"])


def test_the_command_line_says_how_many_were_run_and_whether_these_are_all(capsys):
    words = ["run", "hgemm_v1", "128", "128", "64", "--device", "sim", "--schedule", "explore"]
    assert main(words) == 0
    assert "explored  all   2 interleavings, no difference" in capsys.readouterr().out
    assert main([*words, "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["explored"]["verdict"] == "incomplete"
    assert main([*words, "--limit", "0"]) == 2


def test_a_limit_that_is_reached_never_reads_as_all():
    found = run("explore", limit=1).explored
    assert (found.verdict, found.tried) == ("incomplete", 1)
    assert "incomplete" in str(found)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True, None])
def test_a_limit_that_is_no_number_of_runs_is_refused(limit):
    with pytest.raises(BadInput, match="limit is a number of runs"):
        run("explore", limit=limit)


def test_without_race_checks_it_refuses():
    with pytest.raises(BadInput, match="needs the race checks"):
        run("explore", checks="memory")


@pytest.mark.parametrize("text", ["choices:", "choices:12=1,40=3", "choices:lane31,2=1"])
def test_choices_replay_by_name(text):
    assert parse_schedule(text).name == text


@pytest.mark.parametrize("text", ["choices", "choices:1", "choices:a=1", "explore+delay:warp1"])
def test_bad_choices_are_refused(text):
    with pytest.raises(BadInput):
        parse_schedule(text)


def test_what_sleeps_is_not_tried():
    node = Node([("t", 0), ("t", 1)], {("t", 1): footprint()}, ("t", 0), {("t", 0), ("t", 1)})
    assert node.next() == ("t", 0)


def test_an_mma_that_lands_after_the_deallocation_still_races_with_the_load_before_it():
    late = run("choices:69=1,73=1,77=1,81=1", product, (("wait", False),))
    assert "race tmem raw" in {f.title for f in late.findings}
    assert "uninitialised-read tmem" not in {f.title for f in late.findings}
    assert run("explore", product, (("wait", False),)).explored.verdict == "all"
