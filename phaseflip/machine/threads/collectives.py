"""Collectives of one warp: findings where part of a warp, or several warps of a CTA, execute one.

Source: PTX ISA 9.1, tcgen05, "Issue Granularity".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings.finding import Finding, agree

if TYPE_CHECKING:
    from ...findings.finding import Place
    from .warp import Group


def one_warp(g: Group, place: Place) -> None:
    """Report that part of a warp, or several warps, execute a collective of one warp."""
    g.cta.report(
        Finding(
            "divergent-collective",
            "it is a collective of one whole warp (.sync.aligned)",
            place=place,
            memory="tmem",
            what=f"{g} {agree(g, 'executes', 'execute')} {place.mnemonic}",
            fix="let all lanes of the warp execute it: guard it with the warp at most (if warp_id == 0), not with a lane",
        )
    )


def by_one_warp(g: Group, place: Place) -> None:
    """Report a collective of one warp of the CTA that part of a warp executes, or a second warp at the same turn."""
    if not g.whole_warps():
        one_warp(g, place)
    warps = g.cta.tmem.executed_by.setdefault(g.position(place), set())
    before = len(warps)
    warps.update(g.warp_ids())
    if before <= 1 < len(warps):
        g.cta.report(
            Finding(
                "divergent-collective",
                "it is executed by one warp of the CTA (issue granularity of tcgen05)",
                place=place,
                memory="tmem",
                what=f"several warps of {g.cta} execute {place.mnemonic}",
                fix="let one warp of the CTA execute it: guard it with the warp (if warp_id == 0)",
            )
        )
