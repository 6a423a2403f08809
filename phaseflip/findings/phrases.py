"""Words that several reports share."""

from __future__ import annotations

from typing import Any

CLUSTER_BARRIER = "a cluster barrier (T.ptx.barrier.cluster.arrive and wait)"
"""In advice: where all threads of a cluster can meet."""


def flip(name: str) -> str:
    """In advice: what mends a wait for a consumed phase of a barrier of this name."""
    ring = ", in a ring once a round; if it is flipped, wait on the barrier of the stage that is used next"
    return "flip the phase after each wait (phase ^= 1)" + (ring if "[" in name else "")


ONLY_THEN = "; a pass of the loop without that wait must not flip it"
"""More advice to `flip`, where the wait may have been passed over."""


def phase_name(phase: int) -> str:
    """A phase of an mbarrier in words; a fresh one has a complete phase of parity 1 before its first."""
    return "the phase before the first" if phase < 0 else f"phase {phase}"


def agree(who: Any, singular: str, plural: str) -> str:
    """The form of a verb that goes with threads in words: "CTA 0 warp 2 waits", but "CTA 0 warps 0-3 wait"."""
    several = any(word in str(who) for word in ("warps", "lanes", "threads", " and "))
    return plural if several else singular
