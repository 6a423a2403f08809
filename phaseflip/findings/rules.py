"""How findings are judged: one table of severities by profile, the categories of checks, and what to read first.

Source: PTX ISA 9.1; the section or mnemonic stands beside each rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadInput

PROFILES = ("ptx", "practice")
CATEGORIES = ("races", "protocol", "memory", "lifecycle", "deadlock")


@dataclass(frozen=True)
class Rule:
    """How one kind of finding is judged: category for --checks, severity by profile, and the PTX text behind it."""

    category: str
    ptx: str
    practice: str
    source: str


RULES = {
    "race": Rule("races", "error", "error", "8.9 causality order; rules of each instruction"),
    "race:equal": Rule("races", "error", "note", "8.9 causality order; stores of equal values"),
    "race:read-only": Rule("races", "error", "error", "ld.global.nc; 9.7.9.9"),
    "race:restrict": Rule("races", "error", "note", "CUDA C++, __restrict__"),
    "missing-proxy-fence": Rule("races", "error", "error", "fence.proxy.async; 8.6, 9.7.16.6.5"),
    "missing-proxy-fence:read": Rule("races", "error", "note", "fence.proxy.async; 8.6, 9.7.16.6.5"),
    "missing-proxy-fence:late": Rule("races", "note", "note", "fence.proxy.async after the rendezvous; 9.7.16.6.5"),
    "missing-proxy-fence:init": Rule("races", "note", "note", "mbarrier.init, fence.mbarrier_init; 9.7.13.15.9, 9.7.13.4"),
    "missing-tcgen05-fence": Rule("races", "error", "note", "tcgen05.fence; 9.7.16.6.4.4"),
    "missing-wgmma-fence": Rule("races", "error", "error", "wgmma.fence; 9.7.15.7.1"),
    "scope-too-narrow": Rule("races", "error", "note", "mbarrier.arrive .cta; 9.7.13.15.13, 8.7"),
    "scope-too-narrow:flag": Rule("races", "error", "error", "ld, st .cta; 8.7"),
    "stale-wait": Rule("protocol", "error", "error", "mbarrier.test_wait.parity; 9.7.13.15.16"),
    "lapped-wait": Rule("protocol", "error", "error", "mbarrier.test_wait.parity; 9.7.13.15.16"),
    "over-arrival": Rule("protocol", "error", "error", "mbarrier.arrive; 9.7.13.15.13"),
    "tx-count-mismatch": Rule("protocol", "error", "error", "mbarrier.expect_tx; 9.7.13.15.5"),
    "barrier-not-initialised": Rule("protocol", "error", "error", "mbarrier.init; 9.7.13.15.9"),
    "barrier-reinitialised": Rule("protocol", "error", "error", "mbarrier.init; 9.7.13.15.9"),
    "deadlock": Rule("deadlock", "error", "error", "forward progress"),
    "divergent-collective": Rule("protocol", "error", "error", ".sync.aligned; 9.7.13.1, 9.7.16.7"),
    "divergent-collective:exited": Rule("protocol", "note", "note", "bar.sync .aligned, against exit; 9.7.13.1"),
    "cancel-after-failure": Rule("protocol", "error", "error", "clusterlaunchcontrol.try_cancel"),
    "divergent-collective:parted": Rule("protocol", "error", "note", "bar.sync .aligned, with a count; 9.7.13.1"),
    "divergent-collective:parted-few": Rule("protocol", "note", "note", "bar.sync .aligned, of fewer threads; 9.7.13.1"),
    "barrier-mismatch": Rule("protocol", "error", "error", "bar.sync; 9.7.13.1"),
    "tmem-unallocated": Rule("lifecycle", "error", "error", "tcgen05.alloc; 9.7.16.7"),
    "tmem-leak": Rule("lifecycle", "error", "error", "tcgen05.dealloc; 9.7.16.7"),
    "tmem-double-free": Rule("lifecycle", "error", "error", "tcgen05.dealloc; 9.7.16.7"),
    "tmem-bad-allocation": Rule("lifecycle", "error", "error", "tcgen05.alloc; 9.7.16.7"),
    "tmem-lane-access": Rule("lifecycle", "error", "error", "tcgen05.ld; 9.7.16.8"),
    "tmem-freed-in-use": Rule("lifecycle", "error", "error", "tcgen05.dealloc; 9.7.16.7"),
    "uninitialised-read": Rule("memory", "error", "error", "ld; tcgen05.wait::ld"),
    "out-of-bounds": Rule("memory", "error", "error", "ld, st, tcgen05.mma"),
    "out-of-bounds:parity": Rule("memory", "error", "note", "mbarrier.test_wait.parity; 9.7.13.15.16"),
    "out-of-bounds:array": Rule("memory", "note", "note", "the kernel's index; PTX knows no arrays of mbarriers"),
    "misaligned-access": Rule("memory", "error", "error", "ld, st; 6.4.1"),
    "peer-not-launched": Rule("lifecycle", "error", "note", "tcgen05.alloc .cta_group::2; 9.7.16.7.1"),
    "peer-exited": Rule("lifecycle", "error", "error", "mapa, barrier.cluster"),
    "peer-exited:commit": Rule("lifecycle", "error", "note", "tcgen05.commit; 9.7.16.6"),
    "duplicate-issue": Rule("protocol", "error", "error", "tcgen05.mma is issued by one thread; 9.7.16.10"),
    "unwritten-output": Rule("memory", "error", "error", "every element of the output is written"),
    "output-overwritten": Rule("races", "error", "error", "every element of the output is written by one CTA"),
    "output-overwritten:equal": Rule("races", "error", "note", "8.9 causality order; stores of equal values"),
    "wrong-result": Rule("memory", "error", "error", "the numeric oracle"),
    "launch-failure": Rule("memory", "error", "error", "CUDA's error of a launch"),
    "resource-limit": Rule("memory", "error", "error", "limits of sm_100a"),
}  # fmt: skip
"""Code, or code:variant, of every finding. "Silent" means that no finding is an error."""

PRECEDENCE = {
    "duplicate-issue": 1,
    "barrier-not-initialised": 2,
    "barrier-reinitialised": 2,
    "over-arrival": 2,
    "tx-count-mismatch": 2,
    "stale-wait": 2,
    "peer-exited": 4,
    "tmem-freed-in-use": 4,
    "tmem-leak": 5,
    "deadlock": 6,
    "lapped-wait": 7,
}
"""Which findings to read first; 3 for all others, 5 for those that follow. A product issued twice commits twice; a barrier that
counts wrongly, or is asked for the wrong phase, orders nothing, so that races follow; and where threads race, a CTA may also
leave or free too early, and threads arrive too often, wait for ever, or be a lap behind."""

KINDS = ("raw", "war", "waw")
"""Of races, in the order in which to read them: who does not wait for what it reads, lets others overwrite it too early."""


def parse_checks(text: str) -> frozenset[str]:
    """ "all", "none" or a comma-separated list of categories; BadInput names the categories."""
    if text == "all":
        return frozenset(CATEGORIES)
    if text == "none":
        return frozenset()
    names = [name.strip() for name in text.split(",")]
    legal = f"all, none, or some of {', '.join(CATEGORIES)}"
    for name in names:
        if not name:
            raise BadInput(f"the list of checks {text!r} has an empty name; choose {legal}")
        if name in ("all", "none"):
            raise BadInput(
                f"{name!r} stands alone, and {text!r} has more than that; choose {legal}"
            )
        if name not in CATEGORIES:
            raise BadInput(f"unknown check {name!r}; choose {legal}")
    return frozenset(names)
