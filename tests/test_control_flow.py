"""Where lanes meet again, and which values a block needs, on small graphs; and on random ones by definition."""

import random

import pytest

from phaseflip.translate.control_flow import EXIT, immediate_post_dominators, live_in

DIAMOND = {0: [1, 2], 1: [3], 2: [3], 3: [EXIT]}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({0: [EXIT]}, {0: EXIT}),
        (DIAMOND, {0: 3, 1: 3, 2: 3, 3: EXIT}),
        ({0: [1, 2], 1: [EXIT], 2: [EXIT]}, {0: EXIT, 1: EXIT, 2: EXIT}),
        ({0: [1], 1: [2, 3], 2: [1], 3: [EXIT]}, {0: 1, 1: 3, 2: 1, 3: EXIT}),
        ({0: [1], 1: [2, 4], 2: [1, 3], 3: [4], 4: [EXIT]}, {0: 1, 1: 4, 2: 4, 3: 4, 4: EXIT}),
    ],
    ids=["one block", "diamond", "return on both sides", "loop", "loop with break"],
)
def test_immediate_post_dominators(graph, expected):
    assert immediate_post_dominators(graph) == expected


def test_blocks_of_an_endless_loop_meet_nowhere():
    graph = {0: [1], 1: [2, 3], 2: [1], 3: [1]}
    assert immediate_post_dominators(graph) == dict.fromkeys(graph, EXIT)


def reaches_exit_without(graph, start, banned):
    seen, stack = set(), [start]
    while stack:
        block = stack.pop()
        if block == EXIT:
            return True
        if block in seen or block == banned:
            continue
        seen.add(block)
        stack += graph[block]
    return False


def random_graph(seed):
    rng = random.Random(seed)
    n = rng.randint(2, 9)
    return {b: rng.sample([*range(n), EXIT], rng.choice([1, 1, 2])) for b in range(n)}


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_by_definition(seed):
    """The nearest block, other than itself, that every path to the exit passes."""
    graph = random_graph(seed)
    found = immediate_post_dominators(graph)
    for block in graph:
        if not reaches_exit_without(graph, block, None):
            assert found[block] == EXIT
            continue
        doms = [d for d in graph if d != block and not reaches_exit_without(graph, block, d)]
        if not doms:
            assert found[block] == EXIT
            continue
        nearest = [
            d for d in doms if all(not reaches_exit_without(graph, d, e) for e in doms if e != d)
        ]
        assert [found[block]] == nearest


@pytest.mark.parametrize("seed", range(60))
def test_live_slots_by_definition(seed):
    """A slot is live where some path reads it before it is written."""
    graph, rng = random_graph(seed), random.Random(seed)
    access = {
        b: (
            {s for s in range(4) if rng.random() < 0.2},
            {s for s in range(4) if rng.random() < 0.3},
        )
        for b in graph
    }
    found = live_in(graph, access)

    def is_live(block, slot, seen):
        if block == EXIT or block in seen:
            return False
        if slot in access[block][0]:
            return True
        if slot in access[block][1]:
            return False
        return any(is_live(s, slot, seen | {block}) for s in graph[block])

    for block in graph:
        assert found[block] == {s for s in range(4) if is_live(block, s, frozenset())}
