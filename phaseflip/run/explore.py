"""Schedule `explore`: all orders in which the steps of a small kernel may happen, without those that change nothing.

Dynamic partial-order reduction (Flanagan and Godefroid, POPL 2005) with source sets and sleep sets (Abdulla, Aronis,
Jonsson and Sagonas, POPL 2014), by running anew from the start. Agents are groups of threads and the queues of operations
in flight. After a run, each pair of dependent steps of two agents that nothing between them orders is a choice to be made
the other way round: the agent of the second step, or one that leads to it, is tried where the first one ran. What
has been tried sleeps in the runs after it until a step that depends on it has run.

The clusters of a grid run one after the other; each is explored with the others in their default order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadInput
from .dependence import Footprint, Recorder, independent
from .interleaving import Agent, Event, races, tries
from .schedule import Choices
from .stepper import Stepper

MOST_RUNS = 10**9
LANES = (0, 31)
"""What elect.sync elects, counted from the lowest active lane: the lowest, and in other runs the highest."""


@dataclass
class Explored:
    """What exploring came to.

    `runs` interleavings ran to their end, of `tried` runs in all (the others turned out to be like one that had run);
    `complete`: these are all. `difference` is the schedule that replays the first run with other findings or outputs
    than the first run, None if there was none; `what` says in which way it differs.
    """

    runs: int = 0
    tried: int = 0
    complete: bool = False
    difference: str | None = None
    what: str = ""

    def then(self, other: Explored) -> Explored:
        """What came of these interleavings, and of the others after them."""
        one = self if self.difference else other
        return Explored(
            self.runs + other.runs, self.tried + other.tried, self.complete and other.complete, one.difference, one.what
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        """ "different", "incomplete" where the limit ended it, or "all"."""
        return "different" if self.difference else "all" if self.complete else "incomplete"

    def to_json(self) -> dict[str, Any]:
        """Keys that scripts rely on."""
        return {
            "verdict": self.verdict, "runs": self.runs, "tried": self.tried, "difference": self.difference,
            "what": self.what or None, "text": str(self),
        }  # fmt: skip

    def __str__(self) -> str:
        number = f"{self.runs:,} interleaving{'' if self.runs == 1 else 's'}"
        if self.difference:
            return f"DIFFERENT   after {number}: {self.what}; --schedule {self.difference}"
        if self.complete:
            return f"all   {number}, no difference"
        return f"incomplete   {number} without a difference, and the limit is reached"


def check_limit(limit: Any) -> int:
    """The number of runs; BadInput unless it is a whole number from 1."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_RUNS:
        raise BadInput(f"limit is a number of runs from 1 to {MOST_RUNS}, not {limit!r}")
    return limit


class Redundant(Exception):
    """Whatever runs next has been tried: this run would be like one before."""


@dataclass
class Node:
    """A point of a run where something was chosen: what could run, what is to be tried, what has been, what sleeps."""

    enabled: list[Agent]
    sleep: dict[Agent, Footprint]
    chosen: Agent
    backtrack: set[Agent] = field(default_factory=set)
    done: dict[Agent, Footprint] = field(default_factory=dict)

    def next(self) -> Agent | None:
        """An agent that is still to be tried here."""
        for agent in self.enabled:
            if agent in self.backtrack and agent not in self.done and agent not in self.sleep:
                return agent
        return None


class Explorer(Choices):
    """A schedule that follows the nodes so far, then takes what does not sleep, and notes what happened."""

    def __init__(self, leader: int, cluster: int, nodes: list[Node]) -> None:
        super().__init__({}, leader)
        self.nodes, self.explored_cluster, self.first_new = nodes, cluster, max(len(nodes) - 1, 0)
        self.events: list[Event] = []
        self.clusters = self.depth = 0
        self.elections = self.stopped_inside = False

    def stepper(self, cluster: Any) -> Stepper:
        """The loop over the steps of the next cluster."""
        self.clusters += 1
        if self.clusters - 1 != self.explored_cluster:
            return Stepper(cluster, self)
        return ExploringStepper(cluster, self)

    def choose(self, enabled: list[Agent], default: int) -> int:
        """The position of the agent that runs now."""
        at, self.depth = self.depth, self.depth + 1
        if at < len(self.nodes):
            return enabled.index(self.nodes[at].chosen)
        sleep: dict[Agent, Footprint] = {}
        if at:
            before, last = self.nodes[at - 1], self.events[at - 1].footprint
            asleep = before.sleep | before.done
            asleep.pop(before.chosen, None)
            sleep = {a: f for a, f in asleep.items() if a in enabled and independent(f, last)}
        awake = [i for i, agent in enumerate(enabled) if agent not in sleep]
        if not awake:
            raise Redundant
        pick = default if default in awake else awake[0]
        self.nodes.append(Node(enabled, sleep, enabled[pick], {enabled[pick]}))
        return pick


class ExploringStepper(Stepper):
    """Tells the explorer who can run, and what each step touched."""

    def __init__(self, cluster: Any, schedule: Explorer) -> None:
        super().__init__(cluster, schedule)
        self.explorer = schedule
        self.recorder: Recorder = cluster.recorder
        self.current: Agent | None = None
        self.serials: dict[int, tuple[int, Any, int]] = {}
        """id of an operation -> number, the operation, the event that issued it."""

    def pick(self, runnable: list[Any]) -> int:
        """See Stepper; a step begins."""
        pipes = range(len(self.cluster.pipes))
        agents = [_agent_of(g) for g in runnable] + [self.pipe_agent(p) for p in pipes]
        default = self.schedule.pick(len(runnable), len(pipes))
        choice = self.explorer.choose(agents, default)
        self.explorer.note(choice, default)
        self.current = agents[choice]
        return choice

    def pipe_agent(self, pipe: int) -> Agent:
        """A queue of operations by its name; one that may land in any order by itself."""
        name, operation = self.cluster.pipes.head(pipe)
        if name is None:
            return ("load", self.serials[id(operation)][0])
        assert isinstance(name, tuple)
        return ("queue", *name)

    def step(self, g: Any) -> None:
        """See Stepper."""
        if self.current is None:  # a look ends in vain since nothing else can happen: no choice
            self.current = _agent_of(g)
            self.explorer.choose([self.current], 0)
        for operation in _awaited(g.wait):
            if id(operation) in self.serials:
                self.recorder.touch(("async", self.serials[id(operation)][0]), "finish")
        self.recorded(lambda: Stepper.step(self, g), -1)

    def land(self, pipe: int) -> None:
        """See Stepper."""
        if self.current is None:  # nobody gets on, so it lands without a choice
            self.current = self.pipe_agent(pipe)
            self.explorer.choose([self.current], 0)
        number, _, issued_by = self.serials[id(self.cluster.pipes.head(pipe)[1])]
        self.recorder.touch(("async", number), "land")
        self.recorded(lambda: Stepper.land(self, pipe), issued_by)

    def recorded(self, act: Callable[[], None], issued_by: int) -> None:
        """Do something, and note it as an event, also where it stops the kernel."""
        explorer = self.explorer
        stopped = True
        try:
            act()
            stopped = False
        finally:
            assert self.current is not None
            event = Event(self.current, self.recorder.take(), issued_by, stopped)
            explorer.events.append(event)
            self.current = None
            explorer.elections |= self.recorder.elections
            for operation in self.cluster.pipes.operations():
                if id(operation) not in self.serials:
                    self.serials[id(operation)] = (len(self.serials), operation, len(explorer.events) - 1)  # fmt: skip


def _agent_of(g: Any) -> Agent:
    """A group by its CTA and its lanes, as bits."""
    mask = 0
    for lane in g.lanes.tolist():
        mask |= 1 << lane
    return ("group", g.cta.rank, mask)


def _awaited(wait: Any) -> list[Any]:
    """The operations in flight that a wait is for."""
    some = [*getattr(wait, "pending", ()), *getattr(wait, "awaited", ())]
    return [one[1] if isinstance(one, tuple) else one for one in some]


def explore(run: Callable[[Explorer], Any], same: Callable[[Any, Any], str], limit: int) -> tuple[Any, Explored]:  # fmt: skip
    """Run under all interleavings, up to a limit of runs or the first that differs; the first run, and what came of it.

    run: one run under a schedule, None where it was given up as Redundant. same: in what two results differ, "" if in
    nothing that counts.
    """
    result, first = Explored(), None
    leaders, clusters = [LANES[0]], 1
    for leader in leaders:
        cluster = -1
        while (cluster := cluster + 1) < clusters:
            nodes: list[Node] = []
            while True:
                if result.tried == limit:
                    return first, result
                explorer = Explorer(leader, cluster, nodes)
                outcome = run(explorer)
                result.tried += 1
                clusters = max(clusters, explorer.clusters)
                if explorer.elections and len(leaders) == 1:
                    leaders += LANES[1:]
                if outcome is not None:
                    result.runs += 1
                    first = outcome if first is None else first
                    difference = same(first, outcome)
                    if difference:
                        result.difference, result.what = explorer.name, difference
                        return first, result
                if not advance(nodes, explorer):
                    break
    result.complete = True
    return first, result


def advance(nodes: list[Node], explorer: Explorer) -> bool:
    """Enter what the last run showed to be open, and choose what to try next; False if nothing is left."""
    events = explorer.events
    for node, event in zip(nodes, events, strict=False):
        node.done[event.agent] = event.footprint
    del nodes[len(events) :]
    for first, second, past in races(events, explorer.first_new):
        node = nodes[first]
        candidates = tries(events, first, second, past)
        if not node.backtrack.intersection(candidates) and not node.sleep.keys() & set(candidates):
            possible = [agent for agent in candidates if agent in node.enabled]
            node.backtrack.update(possible[:1])
    if events and events[-1].stopped:
        nodes[-1].backtrack.update(nodes[-1].enabled)
    while nodes:
        agent = nodes[-1].next()
        if agent is not None:
            nodes[-1].chosen = agent
            return True
        nodes.pop()
    return False


def difference(first: Any, other: Any) -> str:
    """In what two runs of a kernel differ: in their findings (code, memory, kind, lines), or in their outputs if no finding
    is an error; "" if in neither."""
    if isinstance(first, str) or isinstance(other, str):
        return "" if first == other else next(r for r in (first, other) if isinstance(r, str))
    one, another = (
        {(f.severity, f.title, str(f.place), str(f.other or "")) for f in run.findings}
        for run in (first, other)
    )
    if one != another:
        words = [
            f"{word} {' '.join(found[1:]).strip()}"
            for word, many in (("no", one - another), ("also", another - one))
            for found in sorted(many)
        ]
        return ", ".join(words)
    if any(f[0] == "error" for f in one):
        return ""
    names = [n for n, a in first.outputs.items() if a.tobytes() != other.outputs[n].tobytes()]
    return f"other values in {', '.join(names)}" if names else ""
