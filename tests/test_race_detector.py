"""The race detector, told of random traces, against a graph of what happens before what.

The model knows single threads, single bytes and paths: every operation is a node, with edges for program order and
from each release to the acquires of it. A race is a pair of conflicting accesses without a path. The detector may keep
only some of the races of a byte, but never none, and none that the model does not have.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseflip.findings.finding import Findings, Place
from phaseflip.machine.memory.load_store import Memory
from phaseflip.ordering.knowledge import join, restrict, united
from phaseflip.races.detector import Launch, RaceDetector
from phaseflip.races.shadow import Shadow

EXAMPLES = max(150, settings.default.max_examples)
SIZE = 64
LANES = 3
WARPS = 3


class Group:
    """The first lanes of one warp, as far as the detector looks at a group."""

    def __init__(self, cta, lanes, knowledge):
        self.cta, self.lanes, self.n, self.knowledge = cta, lanes, len(lanes), knowledge
        self.common = None

    def position(self, place):
        return (), place.order

    def agents(self, lanes):
        return "threads"

    def view(self, keep):
        lanes = self.lanes[keep]
        return Group(self.cta, lanes, restrict(self.knowledge, lanes))


class Machine:
    """Warps that execute operations, the detector, and the model beside it."""

    def __init__(self, written=True):
        """`written`: the memory has been written before, so that reads are not put off until a write comes."""
        self.findings = Findings()
        self.detector = RaceDetector(Launch(self.findings), 32 * WARPS, 32 * WARPS)
        self.memory = Memory("shared", lambda offset: "s", 0, SIZE)
        self.memory.shadow = Shadow(SIZE, initialised=True)
        if written:
            self.memory.shadow.deferred = None
        cta = SimpleNamespace(first_component=0, rank=0)
        self.groups = []
        for w in range(WARPS):
            lanes = np.arange(32 * w, 32 * w + LANES)
            self.groups.append(Group(cta, lanes, self.detector.start(lanes)))
        self.line = 0
        # the model: ancestors of every node as a bit mask, the newest node of every thread, accesses, fences
        self.ancestors = []
        self.newest = {}
        self.accesses = []
        self.fences = []
        self.tokens = []
        self.operations = []

    def node(self, *before):
        mask = 0
        for b in before:
            if b is not None:
                mask |= self.ancestors[b] | 1 << b
        self.ancestors.append(mask)
        return len(self.ancestors) - 1

    def step(self, thread, *others):
        self.newest[thread] = self.node(self.newest.get(thread), *others)
        return self.newest[thread]

    def path(self, a, b):
        return bool(self.ancestors[b] >> a & 1)

    def place(self, mnemonic):
        self.line += 1
        return Place(mnemonic, "trace", self.line, self.line)

    def part(self, warp, chosen):
        """Some lanes of a warp, and what puts their knowledge back."""
        whole = self.groups[warp]
        keep = np.isin(whole.lanes - 32 * warp, chosen)
        part, rest = whole.view(keep), whole.view(~keep) if not keep.all() else None

        def back():
            whole.knowledge = united([part.knowledge] + ([] if rest is None else [rest.knowledge]))

        return part, back

    # -- operations -----------------------------------------------------------------------------------------------
    def access(self, warp, chosen, offsets, nbytes, writes):
        part, back = self.part(warp, chosen)
        place = self.place("st.shared" if writes else "ld.shared")
        mine = [offsets[i % len(offsets)] * nbytes % SIZE for i in range(part.n)]
        if writes and len(part.knowledge) > 1 and len(set(mine)) < part.n:
            return  # lanes that know different things store to one place at once: the shadow holds one of them
        offset = mine[0] if len(offsets) == 1 else np.array(mine)
        self.detector.thread_access(part, place, self.memory, offset, nbytes, writes)
        back()
        for thread, first in zip(part.lanes.tolist(), mine, strict=True):
            node = self.step(thread)
            self.accesses.append(
                (node, thread, place.line, range(first, first + nbytes), writes, "generic")
            )

    def release(self, warp, chosen):
        part, back = self.part(warp, chosen)
        clock = self.detector.release(part)
        back()
        self.tokens.append((clock, self.node(*(self.step(t) for t in part.lanes.tolist()))))

    def acquire(self, warp, chosen, which):
        if self.tokens:
            clock, node = self.tokens[which % len(self.tokens)]
            part, back = self.part(warp, chosen)
            self.detector.acquire(part, clock)
            back()
            for thread in part.lanes.tolist():
                self.step(thread, node)

    def barrier(self, warps):
        chosen = [self.groups[w] for w in sorted(warps)]
        clock = join([self.detector.release(g) for g in chosen])
        node = self.node(*(self.step(t) for g in chosen for t in g.lanes.tolist()))
        for g in chosen:
            self.detector.acquire(g, clock, everything=True)
            for t in g.lanes.tolist():
                self.step(t, node)

    def warp_sync(self, warp):
        g = self.groups[warp]
        self.detector.synchronise_warps(g)
        node = self.node(*(self.step(t) for t in g.lanes.tolist()))
        for t in g.lanes.tolist():
            self.step(t, node)

    def fence(self, warp, chosen):
        part, back = self.part(warp, chosen)
        self.detector.fence_proxy_async(part, "")
        back()
        for t in part.lanes.tolist():
            self.fences.append((self.step(t), t))

    def issue(self, warp, lane, unit, count):
        """An asynchronous operation reads 16-byte units."""
        g, thread = self.groups[warp], 32 * warp + lane
        place = self.place("async.read")
        ticket = self.detector.issue(g, thread, ("queue", place.line), place, "operation")
        units = np.array([(unit + i) % (SIZE // 16) for i in range(count)])
        self.detector.operation_access(ticket, self.memory, units, False)
        node = self.node(self.step(thread))
        for u in set(units.tolist()):
            span = range(16 * u, 16 * u + 16)
            self.accesses.append((node, thread, place.line, span, False, "async"))
        self.operations.append((ticket, node))

    def complete(self, warp, chosen, which):
        """Some threads observe that an operation is done."""
        if self.operations:
            ticket, node = self.operations[which % len(self.operations)]
            part, back = self.part(warp, chosen)
            self.detector.acquire(part, ticket.done(self.detector.size))
            back()
            for t in part.lanes.tolist():
                self.step(t, node)

    # -- verdicts ---------------------------------------------------------------------------------------------------
    def expected(self):
        """({(line, line): bytes} of races, {(line, line)} of missing fences and of late ones)."""
        races, missing, late = {}, set(), set()
        for j, (b, tb, lb, rb, wb, pb) in enumerate(self.accesses):
            for a, ta, la, ra, wa, pa in self.accesses[:j]:
                both = set(ra) & set(rb)
                if not both or not (wa or wb) or la == lb:
                    continue
                pair = (la, lb)
                if not self.path(a, b):
                    races.setdefault(pair, set()).update(both)
                elif pa == "generic" and pb == "async":
                    if not any(
                        t == ta and self.path(a, f) and self.path(f, b) for f, t in self.fences
                    ):
                        by_issuer = any(
                            t == tb and self.path(a, f) and self.path(f, b) for f, t in self.fences
                        )
                        (late if by_issuer else missing).add(pair)
                elif (
                    pa == "async"
                    and pb == "generic"
                    and not any(
                        t == tb and self.path(a, f) and self.path(f, b) for f, t in self.fences
                    )
                ):
                    missing.add(pair)
        return races, missing, late

    def check(self):
        races, missing, late = self.expected()
        reported = {"race": set(), "missing": set(), "late": set()}
        for finding in self.findings.all():
            pair = tuple(sorted((finding.line, finding.other.line)))
            kind = (
                "race"
                if finding.code == "race"
                else "late"
                if finding.severity == "note"
                else "missing"
            )
            reported[kind].add(pair)
        assert reported["race"] <= set(races), "a race that is none"
        assert reported["missing"] <= missing | late and reported["late"] <= missing | late
        told = {b for pair in reported["race"] for b in races[pair]}
        racy = {b for found in races.values() for b in found}
        assert racy <= told | self.shared_bytes(reported["race"]), (
            "a byte that races, and nothing said"
        )
        if not races:
            assert bool(reported["missing"] | reported["late"]) == bool(missing | late)

    def shared_bytes(self, pairs):
        """Bytes that both accesses of a reported pair touch: said, though the model blames other threads too."""
        spans = {}
        for _, _, line, span, _, _ in self.accesses:
            spans.setdefault(line, set()).update(span)
        return {b for x, y in pairs for b in spans[x] & spans[y]}


lanes = st.lists(st.integers(0, LANES - 1), min_size=1, max_size=LANES, unique=True)
warps = st.integers(0, WARPS - 1)
OPERATIONS = {
    "access": st.tuples(
        warps, lanes, st.lists(st.integers(0, 15), min_size=1, max_size=LANES), st.sampled_from([1, 4, 16]), st.booleans()
    ),
    "release": st.tuples(warps, lanes),
    "acquire": st.tuples(warps, lanes, st.integers(0, 9)),
    "barrier": st.tuples(st.sets(warps, min_size=1)),
    "warp_sync": st.tuples(warps),
}  # fmt: skip
PROXIES = {
    "fence": st.tuples(warps, lanes),
    "issue": st.tuples(warps, st.integers(0, LANES - 1), st.integers(0, 3), st.integers(1, 3)),
    "complete": st.tuples(warps, lanes, st.integers(0, 9)),
}


def traces(operations):
    """Lists of (name, arguments); accesses are as frequent as all else together."""
    every = [st.tuples(st.just(name), args) for name, args in operations.items()]
    accesses = st.tuples(st.just("access"), operations["access"])
    return st.lists(st.one_of(accesses, st.one_of(every)), max_size=25)


def execute(trace, written):
    machine = Machine(written)
    for name, arguments in trace:
        getattr(machine, name)(*arguments)
    machine.check()


@settings(max_examples=EXAMPLES)
@given(traces(OPERATIONS), st.booleans())
def test_races_are_those_of_the_graph(trace, written):
    execute(trace, written)


@settings(max_examples=EXAMPLES)
@given(traces(OPERATIONS | PROXIES), st.booleans())
def test_races_and_missing_fences_are_those_of_the_graph(trace, written):
    execute(trace, written)


# -- single cases that random traces seldom meet ---------------------------------------------------------------------------
ALL = list(range(LANES))


@pytest.mark.parametrize("released", [0, 1, None])
def test_a_store_after_two_unordered_reads_needs_both(released):
    """The second read takes the place of the first in the shadow, which must not be forgotten."""
    machine = Machine()
    machine.access(0, [0], [0], 4, False)
    machine.access(1, [0], [0], 4, False)
    if released is not None:
        machine.release(released, [0])
        machine.acquire(2, [0], 0)
    machine.access(2, [0], [0], 4, True)
    machine.check()
    assert len(machine.findings.all()) == (2 if released is None else 1)


def test_a_read_of_many_threads_is_judged_byte_by_byte():
    """Lane i reads byte i; only lane 0 releases; then another warp writes byte 0, and byte 1."""
    machine = Machine()
    machine.access(0, ALL, [0, 1, 2], 1, False)
    machine.release(0, [0])
    machine.acquire(1, ALL, 0)
    machine.access(1, [0], [0], 1, True)
    assert machine.findings.all() == []
    machine.access(1, [0], [1], 1, True)
    assert [f.code for f in machine.findings.all()] == ["race"]
    machine.check()


def test_warps_that_store_to_one_place_in_one_step_collide():
    machine = Machine()
    lanes = np.array([0, 1, 32, 33])
    group = Group(machine.groups[0].cta, lanes, machine.detector.start(lanes))
    place = machine.place("st.shared")
    machine.detector.thread_access(group, place, machine.memory, np.array([0, 4, 8, 12]), 4, True)
    machine.detector.thread_access(
        group, place, machine.memory, np.array([16, 16, 20, 20]), 4, True
    )
    assert machine.findings.all() == []
    machine.detector.thread_access(
        group, place, machine.memory, np.array([32, 36, 36, 40]), 4, True
    )
    (finding,) = machine.findings.all()
    assert (finding.title, finding.place, finding.other) == ("race shared waw", place, place)
    assert "36-39" in finding.what
