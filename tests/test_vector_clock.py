"""Laws of vector clocks, on random clocks of random sizes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.ordering.knowledge import (
    ASYNC,
    PAST,
    SCOPED,
    SEEN,
    TCGEN05,
    Clock,
    Part,
    holds,
    join,
    meet,
    restrict,
    united,
)

ROWS = (SEEN, ASYNC, TCGEN05, SCOPED, PAST)


@st.composite
def clocks(draw):
    size = draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    return Clock(np.array([draw(row) for _ in ROWS], np.int32))


def wide(clock, size=8):
    """Its rows with unknown components filled in: what two clocks are compared by."""
    return clock.with_entries(size).rows[:, :size].tolist()


@given(clocks(), clocks())
def test_join_is_the_least_upper_bound(a, b):
    both = join([a, b])
    assert holds(both, a) and holds(both, b)
    assert wide(both) == np.maximum(wide(a), wide(b)).tolist()


@given(clocks(), clocks(), clocks())
def test_join_is_commutative_associative_and_idempotent(a, b, c):
    assert wide(join([a, b])) == wide(join([b, a]))
    assert wide(join([join([a, b]), c])) == wide(join([a, join([b, c])])) == wide(join([a, b, c]))
    assert wide(join([a, Clock(a.rows.copy())])) == wide(a)


@given(clocks(), clocks())
def test_meet_is_the_greatest_lower_bound(a, b):
    common = meet([a, b])
    assert holds(a, common) and holds(b, common)
    assert wide(common) == np.minimum(wide(a), wide(b)).tolist()


@given(clocks(), clocks())
def test_past_grows_by_what_another_clock_knows_to_have_happened(a, b):
    later = wide(a.with_past(b))
    assert later[PAST] == np.maximum(wide(a)[PAST], wide(b)[PAST]).tolist()
    assert [later[row] for row in ROWS[:PAST]] == [wide(a)[row] for row in ROWS[:PAST]]


@given(clocks())
def test_out_of_scope_takes_the_scope_only(clock):
    rows = wide(clock.out_of_scope())
    assert not any(rows[SCOPED])
    assert [rows[r] for r in ROWS if r != SCOPED] == [wide(clock)[r] for r in ROWS if r != SCOPED]


def test_what_is_known_at_first_hand_needs_no_scope_and_has_happened():
    clock = Clock.zero(3).with_entries(3, (SEEN, 1, 4), (ASYNC, 2, 3))
    assert [clock.rows[r].tolist() for r in ROWS] == [
        [0, 4, 0],
        [0, 0, 3],
        [0, 0, 0],
        [0, 4, 0],
        [0, 4, 0],
    ]


@given(clocks(), clocks())
def test_absorption(a, b):
    assert wide(join([a, meet([a, b])])) == wide(a) == wide(meet([a, join([a, b])]))


@given(clocks(), clocks(), clocks())
def test_holds_is_a_preorder_that_agrees_with_join(a, b, c):
    assert holds(a, a)
    if holds(a, b) and holds(b, c):
        assert holds(a, c)
    assert holds(a, b) == (wide(join([a, b]))[PAST] == wide(a)[PAST])


@given(clocks())
def test_one_clock_is_shared_and_not_copied(a):
    assert join([a]) is a and join([a, a, a]) is a and meet([a, a]) is a


@given(clocks(), st.sampled_from(ROWS), st.integers(0, 9), st.integers(0, 5))
def test_entries_raise_one_component_and_leave_the_clock_alone(a, row, component, value):
    before = wide(a, 10)
    raised = a.with_entries(10, (row, component, value))
    assert raised.covers(row, component, value)
    assert wide(a, 10) == before
    for raised_row in (SEEN, SCOPED, PAST) if row == SEEN else (row,):
        before[raised_row][component] = max(before[raised_row][component], value)
    assert wide(raised, 10) == before


@given(clocks(), st.sampled_from(ROWS), st.integers(0, 9), st.integers(1, 5))
def test_components_beyond_the_size_are_unknown(a, row, component, epoch):
    known = component < a.rows.shape[1] and a.rows[row, component] >= epoch
    assert a.covers(row, component, epoch) == known


@given(
    clocks(), st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), st.integers(1, 4)
)
def test_several_components_are_covered_if_each_is(a, components, epoch):
    at = np.array(sorted(components))
    big = a.with_entries(8)
    assert big.covers(SEEN, at, np.full(len(at), epoch)) == all(
        big.covers(SEEN, int(c), epoch) for c in at
    )


# -- knowledge of groups ------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_knowledge_survives_parting_and_meeting(owners, data):
    """owners[lane] is the clock that the lane holds: parts are by clock, and come back the same."""
    known = [Clock.zero(3) for _ in range(3)]
    lanes = np.arange(len(owners))
    parts = [
        Part(lanes[np.array(owners) == i], known[i], known[0], known[0])
        for i in sorted(set(owners))
    ]
    taken = np.array(data.draw(st.lists(st.booleans(), min_size=len(owners), max_size=len(owners))))
    halves = [restrict(parts, lanes[keep]) for keep in (taken, ~taken) if keep.any()]
    again = united(halves)
    assert sorted(lane for p in again for lane in p.lanes.tolist()) == lanes.tolist()
    for part in again:
        for lane in part.lanes.tolist():
            assert part.clock is known[owners[lane]]
    assert len(again) == len(set(owners))
