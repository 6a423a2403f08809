"""Control-flow graph analysis: where lanes that part at a branch meet again."""

from __future__ import annotations

EXIT = -1
"""The successor of a block after which the thread has returned."""


def immediate_post_dominators(successors: dict[int, list[int]]) -> dict[int, int]:
    """Immediate post-dominator of every block; EXIT where only the end of the kernel is common to all paths.

    Iterative data flow over sets (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001, without their
    numbering: kernels have a few dozen blocks). A block that cannot reach EXIT, an endless loop, gets EXIT.
    """
    everything = set(successors) | {EXIT}
    after = {b: set(everything) for b in successors}
    after[EXIT] = {EXIT}
    changed = True
    while changed:
        changed = False
        for block in sorted(successors, reverse=True):
            paths = [after[s] for s in successors[block]]
            new = (set.intersection(*paths) if paths else {EXIT}) | {block}
            if new != after[block]:
                after[block], changed = new, True
    result = {}
    endless = set(successors) - _reaching_exit(successors)
    for block in successors:
        if block in endless:
            result[block] = EXIT
            continue
        candidates = after[block] - {block}
        # The nearest one is post-dominated by all the others.
        result[block] = next((c for c in candidates if candidates <= after[c]), EXIT)
    return result


def _reaching_exit(successors: dict[int, list[int]]) -> set[int]:
    reaching = {EXIT}
    grown = True
    while grown:
        found = {b for b, after in successors.items() if reaching.intersection(after)}
        grown = not found <= reaching
        reaching |= found
    return reaching


def live_in(
    successors: dict[int, list[int]], access: dict[int, tuple[set[int], set[int]]]
) -> dict[int, set[int]]:
    """Slots whose value a block, or one after it, may read before writing; `access` is (read first, written) by block."""
    live = {b: set(access[b][0]) for b in successors}
    live[EXIT] = set()
    changed = True
    while changed:
        changed = False
        for block in sorted(successors, reverse=True):
            after = set().union(*(live[s] for s in successors[block]))
            new = access[block][0] | (after - access[block][1])
            if new != live[block]:
                live[block], changed = new, True
    return live
