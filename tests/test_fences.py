"""What fences release for relaxed arrivals, and what memory a proxy fence covers, against plain models."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.ordering.fences import PROXY_FENCE_COVERS, ProxyFences, ReleasedByFences
from phaseflip.ordering.knowledge import ASYNC, SEEN, Clock

THREADS = 4


def seen(epochs):
    return Clock.zero(THREADS).with_entries(THREADS, (SEEN, np.arange(THREADS), np.array(epochs)))


def test_threads_release_what_they_knew_at_their_own_fence():
    fences = ReleasedByFences(THREADS, Clock.zero(THREADS))
    fences.clocks[1], fences.epochs[1], fences.fenced[1] = seen([5, 0, 0, 0]), 3, 2
    assert fences.clock(np.array([0, 2]), THREADS).seen.tolist() == [0, 0, 0, 0]
    released = fences.clock(np.array([0, 1]), THREADS)
    assert released.seen.tolist() == [5, 3, 0, 0]
    assert released.rows[ASYNC].tolist() == [0, 2, 0, 0]


def test_a_thread_may_add_to_what_it_releases():
    fences = ReleasedByFences(THREADS, Clock.zero(THREADS))
    fences.add(2, seen([0, 7, 0, 0]))
    fences.add(2, seen([4, 0, 0, 0]))
    assert fences.clock(np.array([2]), THREADS).seen.tolist() == [4, 7, 0, 0]


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(PROXY_FENCE_COVERS)), st.integers(0, THREADS - 1)), max_size=12
    ),
    st.sampled_from(["peer", "global"]),
    st.lists(st.integers(1, 8), min_size=THREADS, max_size=THREADS),
    st.lists(st.integers(0, 9), min_size=THREADS, max_size=THREADS),
)  # fmt: skip
def test_a_proxy_fence_covers_earlier_accesses_once_it_is_seen(executed, memory, accesses, known):
    """Each thread's fences come one an epoch; an access is covered by a fence at or after it that the actor has seen."""
    fences, epochs, covering = ProxyFences(), np.ones(THREADS, np.int32), []
    for space, thread in executed:
        one = np.array([thread])
        fences.execute(space, one, epochs[one].copy())
        if memory in PROXY_FENCE_COVERS[space]:
            covering.append((thread, int(epochs[thread])))
        epochs[thread] += 1
    clock = seen(known)
    for thread in range(THREADS):
        expected = any(t == thread and accesses[t] <= at < known[t] for t, at in covering)
        assert fences.cover(memory, thread, accesses[thread], clock) == expected
    everyone = np.arange(THREADS)
    assert fences.cover(memory, everyone, np.array(accesses), clock) == all(
        fences.cover(memory, t, accesses[t], clock) for t in range(THREADS)
    )
