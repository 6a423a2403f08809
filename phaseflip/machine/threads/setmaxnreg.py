"""The registers that the warps of a CTA own, and setmaxnreg, which moves them between warps by a pool.

How many a thread owns at first, the compiler decides. Here it is what __launch_bounds__ of the CTA's threads allows, as TVM
emits it: the 65536 of an SM shared out evenly, in steps of 8, 256 at most. The pool is empty at first.

Source: PTX ISA 9.1, setmaxnreg.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import KernelFault
from ...findings import Finding, agree
from ...ir.instruction import instruction
from ...ordering.knowledge import SEEN
from .warp import begun

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..cta import CTA
    from .warp import Group

REGISTERS = 65536
WARPS_OF_A_GROUP = 4


class RegisterPool:
    """Registers of one CTA.

    `own[w]` is the number for each thread of warp w, `free` what no warp owns. `executed[w]` are the setmaxnreg of warp
    w: where, and the epoch of its first thread then.
    """

    def __init__(self, threads: int) -> None:
        warps = -(-threads // 32)
        self.own = [min(REGISTERS // threads // 8 * 8, 256)] * warps
        self.free = 0
        self.executed: list[list[tuple[Place, int]]] = [[] for _ in range(warps)]

    def siblings(self, warp: int) -> range:
        """The warps of the warpgroup of a warp."""
        first = warp // WARPS_OF_A_GROUP * WARPS_OF_A_GROUP
        return range(first, min(first + WARPS_OF_A_GROUP, len(self.own)))

    def change(self, warps: list[int], count: int) -> bool:
        """Give each of the warps `count` registers a thread, if the pool holds what that takes."""
        more = self.needed(warps, count)
        if more > self.free:
            return False
        self.free -= more
        for warp in warps:
            self.own[warp] = count
        return True

    def needed(self, warps: list[int], count: int) -> int:
        """Registers that the warps lack to have `count` a thread; negative if they have more."""
        return sum(32 * (count - self.own[warp]) for warp in warps)

    def check_exit(self, cta: CTA) -> None:
        """All threads have exited: the warps of each warpgroup must have executed the same."""
        for first in range(0, len(self.own), WARPS_OF_A_GROUP):
            warps = self.siblings(first)
            for number in range(max(len(self.executed[w]) for w in warps)):
                here: dict[Place, list[int]] = {}
                for warp in warps:
                    for place, _ in self.executed[warp][number : number + 1]:
                        here.setdefault(place, []).append(warp)
                if len(here) > 1 or sum(map(len, here.values())) < len(warps):
                    last = max(here, key=lambda p: p.order)
                    cta.report(_not_together(cta, last, here[last]))
                    break


class RegistersWait:
    """Warps blocked in setmaxnreg.inc until the pool holds enough."""

    def __init__(self, pool: RegisterPool, warps: list[int], count: int) -> None:
        self.pool, self.warps, self.count = pool, warps, count

    def ready(self) -> bool:
        """Enough registers are free."""
        return self.pool.needed(self.warps, self.count) <= self.pool.free

    def finish(self, group: Group) -> None:
        """Take them."""
        group.cta.cluster.touch(("pool", group.cta.rank), "take")
        self.pool.change(self.warps, self.count)

    def most(self) -> int:
        """Registers a thread that the pool can give to all warps which execute this instruction, those that wait included."""
        executed = self.pool.executed
        place = executed[self.warps[0]][-1][0]
        alike = [w for w, places in enumerate(executed) if places and places[-1][0] == place]
        held = self.pool.free + sum(32 * self.pool.own[w] for w in alike)
        return held // (32 * len(alike)) // 8 * 8

    def describe(self) -> str:
        """How many are wanted, and how many there are."""
        pool = self.pool
        owned = sum(32 * own for own in pool.own)
        return (
            f"setmaxnreg.inc to {self.count} registers a thread: {pool.needed(self.warps, self.count)} more, {pool.free} are "
            f"free; the warps of the CTA own {owned} of {REGISTERS}"
        )


@instruction("setmaxnreg", waits=True, supplies=RegistersWait)
def setmaxnreg(g: Group, place: Place, action: str, count: int) -> RegistersWait | None:
    """setmaxnreg.{inc, dec}.sync.aligned.u32 imm-reg-count: each thread of the warps owns `count` registers from now on.

    `count` is 24 to 256, a multiple of 8. All warps of a warpgroup execute the same instruction, and meet before the next.
    .inc waits until the CTA's pool holds enough registers, .dec gives registers to it.
    """
    if not 24 <= count <= 256 or count % 8:
        raise KernelFault(
            "resource-limit",
            f"setmaxnreg to {count} registers; 24 to 256 is legal, in steps of 8",
            f"setmaxnreg to {min(max(count // 8 * 8, 24), 256)}",
        )
    pool, warps = g.cta.register_pool, g.warp_ids()
    if not g.whole_warps():
        g.cta.report(_not_together(g.cta, place, warps, f"part of {g}"))
        return None
    for warp in warps:
        _check_rendezvous(g, place, warp)
    detector = g.cta.detector
    for warp in warps:
        epoch = 0 if detector is None else int(detector.epochs[32 * warp + g.cta.first_component])
        pool.executed[warp].append((place, epoch))
    if detector is not None:
        detector.tick(g)
    wrong = [w for w in warps if (pool.own[w] > count if action == "inc" else pool.own[w] < count)]
    if wrong:
        g.cta.report(
            Finding(
                "resource-limit",
                f"they own {pool.own[wrong[0]]} registers a thread, and setmaxnreg.{action} leads from "
                f"{'fewer to more' if action == 'inc' else 'more to fewer'}",
                place=place,
                what=f"{g}: setmaxnreg.{action} to {count}",
                fix=f"ask for {'at least' if action == 'inc' else 'at most'} what they own",
            )
        )
        return None
    first = all(len(pool.executed[warp]) == 1 for warp in warps)
    g.cta.cluster.touch(("pool", g.cta.rank), action if first else "again")
    if action == "dec":
        pool.change(warps, count)
        return None
    return begun(g, RegistersWait(pool, warps, count))


def _check_rendezvous(g: Group, place: Place, warp: int) -> None:
    """Between two setmaxnreg the warps of a warpgroup synchronise: this one must know of the last of all of them."""
    pool, detector = g.cta.register_pool, g.cta.detector
    number = len(pool.executed[warp]) - 1
    if number < 0 or detector is None:
        return
    known = detector.weakest(g, warp).clock
    for sibling in pool.siblings(warp):
        if sibling == warp:
            continue
        epoch = next((e for _, e in pool.executed[sibling][number:]), None)
        thread = 32 * sibling + g.cta.first_component
        if epoch is None or not known.covers(SEEN, thread, epoch):
            g.cta.report(
                Finding(
                    "divergent-collective",
                    "nothing orders it after the setmaxnreg before it of all warps of the warpgroup",
                    place=place,
                    what=f"a second setmaxnreg in warpgroup {warp // WARPS_OF_A_GROUP} of {g.cta}",
                    fix="synchronise the warpgroup between two setmaxnreg (T.cuda.warpgroup_sync)",
                )
            )
            return


def _not_together(cta: CTA, place: Place, warps: list[int], who: str = "") -> Finding:
    names = who or f"only warp{'s' if len(warps) > 1 else ''} {', '.join(map(str, warps))}"
    return Finding(
        "divergent-collective",
        "all warps of a warpgroup execute the same setmaxnreg (.sync.aligned)",
        place=place,
        what=f"{cta}: {names} of warpgroup {warps[0] // WARPS_OF_A_GROUP} {agree(names, 'executes', 'execute')} it",
        fix="guard setmaxnreg by the warpgroup only (if wg_id == 0), not by warp or lane",
    )
