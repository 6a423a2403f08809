"""Accesses against exits, by clocks written out: components 0 and 1 are threads of CTAs 0 and 1, 2 is a queue."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.findings.finding import Place
from phaseflip.ordering.knowledge import PAST, SEEN, Clock
from phaseflip.races.cta_lifetime import PeerAccesses

SIZE, QUEUE = 3, 2
NAMES = ["CTA 4", "CTA 5"]


def place(line):
    return Place("st.shared", "kernel.py", line, order=line)


def past(*epochs):
    """A clock for which these epochs of the components are past, and nothing is visible."""
    rows = np.zeros((5, SIZE), np.int32)
    rows[PAST] = epochs
    return Clock(rows)


def ticket(number, line=3):
    return SimpleNamespace(place=place(line), component=QUEUE, number=number, who="CTA 4 warp 0")


def thread_access(peers, epoch, line=1):
    """The thread of CTA 1 accesses CTA 0."""
    peers.threads(0, np.array([1]), np.array([epoch]), place(line), "CTA 5 warp 0")


def findings(peers, own=True):
    return [(f.code, f.line) for f, _ in peers.findings(NAMES, own)]


def test_an_access_in_the_past_of_the_exit_is_safe():
    peers = PeerAccesses()
    thread_access(peers, 2)
    peers.exited(0, past(9, 2, 0))
    assert findings(peers) == []


def test_an_access_that_is_only_visible_to_nobody_who_exits_is_not():
    peers = PeerAccesses()
    thread_access(peers, 2)
    peers.exited(0, past(9, 1, 0))
    ((finding, _),) = peers.findings(NAMES, True)
    assert (finding.code, finding.place) == ("peer-exited", place(1))
    assert finding.what == "st.shared of CTA 5 warp 0 accesses memory of CTA 4"
    assert "no thread of CTA 4 knows" in finding.why and "cluster barrier" in finding.fix


def test_one_thread_that_knows_keeps_the_cta():
    """Threads of a CTA exit one by one; the last keeps its memory."""
    peers = PeerAccesses()
    thread_access(peers, 2)
    for clock in (past(1, 0, 0), past(1, 2, 0), past(1, 1, 0)):
        peers.exited(0, clock)
    assert findings(peers) == []


def test_what_another_cta_knows_does_not_keep_this_one():
    peers = PeerAccesses()
    thread_access(peers, 2)
    peers.exited(0, past(1, 0, 0))
    peers.exited(1, past(1, 2, 0))
    assert findings(peers) == [("peer-exited", 1)]


def test_the_last_access_of_an_instruction_counts():
    peers = PeerAccesses()
    for epoch in (1, 2, 3):
        thread_access(peers, epoch)
    thread_access(peers, 2, line=7)
    peers.exited(0, past(1, 2, 0))
    assert findings(peers) == [("peer-exited", 1)]


def test_operations_of_a_queue_may_land_in_any_order():
    peers = PeerAccesses()
    for number in (2, 1):
        peers.operation(0, ticket(number), own=False)
    peers.exited(0, past(1, 1, 1))
    assert findings(peers) == [("peer-exited", 3)]


def test_an_operation_that_no_clock_of_the_exits_has_room_for_is_unknown():
    """The queue appeared after the clocks were made."""
    peers = PeerAccesses()
    peers.operation(0, ticket(1), own=False)
    peers.exited(0, Clock.zero(QUEUE))
    assert findings(peers) == [("peer-exited", 3)]


def test_what_a_cta_leaves_in_flight_itself_is_told_when_asked_for():
    peers = PeerAccesses()
    peers.operation(0, ticket(1), own=True)
    peers.operation(1, ticket(1, line=4), own=False)
    peers.exited(0, past(1, 1, 0))
    peers.exited(1, past(1, 1, 0))
    assert findings(peers, own=False) == [("peer-exited", 4)]
    assert findings(peers) == [("peer-exited", 3), ("peer-exited", 4)]
    (mine, _), (others, _) = peers.findings(NAMES, True)
    assert "before it exits" in mine.fix and "cluster barrier" in others.fix


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), max_size=6), st.data())
def test_safe_is_to_be_past_for_the_exits_of_the_cta_together(accesses, data):
    """Against the definition: for each CTA, the accesses that lie in the past of none of its exits."""
    peers, late = PeerAccesses(), set()
    exits = {
        rank: data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3)) for rank in (0, 1)
    }
    for line, (rank, number) in enumerate(accesses):
        peers.operation(rank, ticket(number, line), own=False)
        if all(known < number for known in exits[rank]):
            late.add(line)
    for rank, known in exits.items():
        for number in known:
            peers.exited(rank, past(0, 0, number))
    assert {line for _, line in findings(peers)} == late


def test_what_is_visible_is_past():
    clock = Clock.zero(SIZE).with_entries(SIZE, (SEEN, QUEUE, 1))
    peers = PeerAccesses()
    peers.operation(0, ticket(1), own=False)
    peers.exited(0, clock)
    assert findings(peers) == []
