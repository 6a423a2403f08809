"""Shadow memory against a list of bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.races.shadow import PAGE, UNIT, Event, Region, Shadow, numbers

SIZE = 3 * PAGE + 64


def accesses():
    """(offset or offsets, bytes): aligned as the machine checks, by one thread or several."""
    sizes = st.sampled_from([1, 2, 4, 8, 16])

    def of(nbytes):
        one = st.integers(0, SIZE // nbytes - 1).map(lambda i: i * nbytes)
        return st.tuples(st.one_of(one, st.lists(one, min_size=1, max_size=6)), st.just(nbytes))

    return sizes.flatmap(of)


def bytes_of(offset, nbytes):
    return [b for o in np.atleast_1d(offset).tolist() for b in range(o, o + nbytes)]


@given(st.lists(accesses(), max_size=25))
def test_every_byte_holds_its_last_write_whatever_the_granularity(history):
    shadow, model = Shadow(SIZE, initialised=False), [0] * SIZE
    for number, (offset, nbytes) in enumerate(history, 1):
        at = offset if isinstance(offset, int) else np.array(offset, np.int64)
        writes, reads, indices, unit = shadow.locate(at, nbytes)
        touched = bytes_of(offset, nbytes)
        assert unit in (1, UNIT) and set(indices.tolist()) == {b // unit for b in touched}
        before = [model[b] for b in touched]
        assert numbers(writes[indices]) == sorted(set(before) - {0})
        writes[indices] = number
        for b in touched:
            model[b] = number
    for b in range(0, SIZE, 7):
        writes, _, indices, _ = shadow.locate(b, 1)
        assert writes[indices].tolist() == [model[b]]


def test_whole_tiles_are_tracked_in_units_until_something_smaller_comes():
    shadow = Shadow(SIZE, initialised=True)
    tile = np.arange(0, PAGE, UNIT)
    assert shadow.locate(tile, UNIT)[3] == UNIT
    assert shadow.locate(PAGE + 3, 1)[3] == 1
    assert shadow.locate(tile, UNIT)[3] == UNIT  # another page
    assert shadow.locate(tile + PAGE, UNIT)[3] == 1


@pytest.mark.parametrize("found", [[], [0, 0], [3, 3], [0, 5, 5, 2], [1]])
def test_numbers_are_the_distinct_ones_without_zero(found):
    expected = sorted(set(found) - {0})
    assert numbers(np.array(found or [0])) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 3), st.data())
def test_an_event_knows_who_touched_each_unit(units, repeat, data):
    """Thread i // repeat touched units[i]; a unit may be touched by several."""
    agents = np.arange(len(units)) // repeat
    event = Event(
        1, True, "generic", None, None, None, np.unique(agents), np.unique(agents) + 100, ((), 0),
        units=np.array(units), unit_agents=agents,
    )  # fmt: skip
    wanted = data.draw(st.lists(st.sampled_from(units), max_size=4))
    rows, found = event.agents_of(np.array(wanted, np.int64) * UNIT + 5)
    rows = np.arange(len(wanted))[rows].tolist()
    pairs = [
        (r, int(a))
        for r, w in enumerate(wanted)
        for u, a in zip(units, agents, strict=True)
        if u == w
    ]
    assert sorted(zip(rows, found.tolist(), strict=True)) == sorted(pairs)
    assert event.epoch_of(found).tolist() == (found + 100).tolist()


def test_a_region_names_the_extent_of_what_is_masked():
    region = Region("memory", np.array([4, 9, 6]), UNIT, None)
    assert region.at(np.array([True, False, True])) == ("memory", 64, 111)
    assert region.at(None) == ("memory", 64, 159)
