"""The loop over steps of one cluster: the schedule picks a group of threads to run, or an operation to land."""

from __future__ import annotations

from typing import Any

from ..errors import Deadlock, SimulatorFault
from ..findings import Finding
from ..ir.instruction import REGISTRY
from ..ir.program import EXIT
from ..machine.cta import Cluster, land
from ..machine.memory.strong import StrongLoad
from ..machine.sync.mbarrier import abandon_uninitialised
from ..machine.sync.named_barrier import complete_late_barriers
from ..machine.threads.divergence import PARTED
from ..machine.threads.warp import Group
from .deadlock import deadlock_finding, polling_finding
from .polling import Polling
from .schedule import Schedule

TURN_BLOCKS = 2_500
"""Blocks that a group may run before others get a turn: more than loops of kernels that do not poll mostly need."""

TURN_STEPS = 1_000
"""The same where every block is a turn, counted over all groups."""

POLL_BLOCKS = 3_000_000
"""Blocks in such long turns after which a cluster is given up, even if something changes in every one of them."""


class Stepper:
    """The loop over steps of one cluster."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.cluster, self.schedule = cluster, schedule
        self.single_blocks = schedule.by_warp
        self.finest = cluster.recorder is not None
        self.polled = self.steps = 0
        self.polling = Polling(cluster)
        self.looks = tuple({i.traits.looks for i in REGISTRY.values() if i.traits.looks})

    def run(self) -> None:
        """Until every thread has exited and nothing is in flight."""
        cluster = self.cluster
        while True:
            runnable = [g for g in cluster.groups if g.wait is None or g.wait.ready()]
            if not runnable and self.schedule.lazy and self.release_a_join():
                continue
            if self.schedule.delays:
                runnable = self.prompt(runnable, bool(cluster.pipes))
            if runnable or cluster.pipes:
                if self.schedule.polls_end:
                    runnable += self.polls()
                choice = self.pick(runnable)
                if choice < len(runnable):
                    self.step(runnable[choice])
                    self.steps += 1
                    if self.single_blocks and self.steps % TURN_STEPS == 0:
                        self.look_for_progress()
                else:
                    self.land(choice - len(runnable))
            elif not (self.release_a_join() or self.unstick() or self.end_polls()):
                if not cluster.groups:
                    if cluster.joins:
                        raise SimulatorFault("threads were lost at a join")
                    return
                raise Deadlock(self.stuck())

    def polls(self) -> list[Group]:
        """Groups whose look at a phase, or at a flag, may end in vain, since nothing has changed."""
        waiting = [(g, g.wait) for g in self.cluster.groups if g.wait is not None]
        return [g for g, wait in waiting if isinstance(wait, self.looks) and not wait.ready()]

    def stuck(self) -> Finding:
        """Nothing can happen: who waits for what."""
        groups = self.cluster.groups
        if all(isinstance(g.wait, StrongLoad) for g in groups):
            return polling_finding(groups, *self.polling.endless_loop())
        return deadlock_finding(self.cluster)

    def end_polls(self) -> bool:
        """Nothing else can happen: let looks at phases end in vain. False where that has changed nothing before."""
        polls = self.polls()
        self.polling.look(polls)
        if not polls or self.polling.nothing_changes(polls):
            return False
        for g in polls:
            self.step(g)
        return True

    def pick(self, runnable: list[Group]) -> int:
        """What happens next: a group, or the next operation of a busy pipe, counted on from the groups."""
        return self.schedule.pick(len(runnable), len(self.cluster.pipes))

    def land(self, pipe: int) -> None:
        """The next operation of a busy pipe lands."""
        land(self.cluster.pipes.take(pipe))

    def prompt(self, runnable: list[Group], landings: bool) -> list[Group]:
        """Those that no delay holds back; all, if there are none and nothing can land."""
        delays = self.schedule.delays
        prompt = [
            g
            for g in runnable
            if not any(d.holds(g.cta.rank, int(g.lanes[0]) >> 5) for d in delays)
        ]
        return prompt if prompt or landings else runnable

    def step(self, g: Group) -> None:
        """Run a group until it waits, parts, meets others or exits; by single blocks where the schedule interleaves."""
        if g.wait is not None:
            wait, g.wait = g.wait, None
            wait.finish(g)
            merged = self.meet(g)
            if merged is None or self.finest:
                return
            g = merged
        blocks, turn = self.cluster.program.blocks, 0
        while True:
            result = blocks[g.pc](g)
            if result.__class__ is int:
                back, g.pc = result <= g.pc, result
                turn += 1
                if (
                    turn > TURN_BLOCKS
                    and back  # the same place in every iteration
                    and result != EXIT
                    and not (g.joins and g.joins[-1].pc == result)
                ):
                    self.yield_turn(g, turn)
                    return
                if result == EXIT:
                    self.exit(g)
                    return
            elif result is PARTED:
                return
            else:
                g.wait = result
                if self.finest or not result.ready():
                    return
                g.wait = None
                result.finish(g)
            merged = self.meet(g)
            if merged is None:
                return
            g = merged
            if self.single_blocks and result.__class__ is int:
                return

    def yield_turn(self, g: Group, blocks: int) -> None:
        """A group that runs on and on may be polling: let others run, and end the run if nothing ever changes."""
        self.polled += blocks
        self.cluster.groups.remove(g)
        self.cluster.groups.append(g)
        self.look_for_progress()

    def look_for_progress(self) -> None:
        """Where all that can run only repeat themselves, let happen what waits for them to stop; if nothing, give up."""
        cluster = self.cluster
        runnable = [g for g in cluster.groups if g.wait is None or g.wait.ready()]
        if not runnable:
            return
        self.polling.look(runnable)
        if self.polled <= POLL_BLOCKS:
            if not self.polling.nothing_changes(runnable) or self.release_a_join():
                return
            if cluster.pipes:
                self.land(0)
                return
            if self.unstick():
                return
        raise Deadlock(polling_finding(runnable, *self.polling.endless_loop()))

    def unstick(self) -> bool:
        """Nothing else can happen: let barriers complete that do so late, else waits pass for which no init has come."""
        return complete_late_barriers(self.cluster.ctas) or abandon_uninitialised(self.cluster)

    def meet(self, g: Group) -> Group | None:
        """A group at its join: the whole group if it was the last part, through as many joins as end here."""
        while g.joins and g.joins[-1].pc == g.pc:
            merged = g.joins[-1].arrive(g)
            if merged is None:
                self.cluster.groups.remove(g)
                self.waiting_joins(g.joins[-1])
                return None
            self.cluster.groups_changed(g, [merged])
            g = merged
        return g

    def waiting_joins(self, join: Any) -> None:
        if join not in self.cluster.joins:
            self.cluster.joins.append(join)

    def release_a_join(self) -> bool:
        """Nothing can run: let the warps go on that only wait to meet others. False if there are none."""
        self.cluster.joins = [join for join in self.cluster.joins if join.arrived]
        for join in self.cluster.joins:
            freed = join.release()
            if freed is not None:
                self.cluster.groups.append(freed)
                merged = self.meet(freed)
                return merged is not None or self.release_a_join()
        return False

    def exit(self, g: Group) -> None:
        """Threads have returned; barriers that wait for all threads no longer wait for them."""
        self.cluster.groups.remove(g)
        self.cluster.touch(("live", g.cta.rank), "exit")
        g.cta.live_threads -= g.n
        if g.cta.detector is not None:
            g.cta.detector.peers.exited(g.cta.rank, g.cta.detector.release(g))
        g.cta.barriers.exited()
        self.cluster.barrier.exited(g)
