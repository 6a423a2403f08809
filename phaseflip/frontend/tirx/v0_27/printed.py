"""How TVM 0.27 prints what 0.26 prints otherwise: lines of examples of faults, from the one to the other.

0.27 prints a call of its table by the first word of the mnemonic, operands first, then a text for each modifier.
"""

from __future__ import annotations

import re

_WORD = r"T.uint32(\2)"
_SHARED = r"T.cuda.cvta_generic_to_shared(\1)"

_RULES = [
    (r"if T\.ptx\.elect_sync\(\):", r"if T.cuda.elect_sync() != T.uint32(0):"),
    (r"T\.bitwise_xor\((\w+), (\w+)\)", r"\1 ^ \2"),
    (r"T\.ptx\.mbarrier\.try_wait\(", r"T.cuda.mbarrier_wait("),
    (
        r"T\.ptx\.mbarrier\.init\((.*), (\d+)\)",
        rf'T.ptx.mbarrier({_SHARED}, {_WORD}, "init", ...)',
    ),
    (
        r"T\.ptx\.mbarrier\.arrive\.expect_tx\((.*), (\d+), \.\.\.\)",
        rf'T.ptx.mbarrier(\1, {_WORD}, "arrive", "expect_tx", ...)',
    ),
    (r"T\.ptx\.mbarrier\.arrive\.expect_tx\(\.\.\.\)", r'T.ptx.mbarrier(..., "expect_tx", ...)'),
    (
        r'T\.ptx\.mbarrier\.arrive\(\.\.\., (?:0, )?("\w*", "\w*", "[\w:]*"), .*\)',
        r'T.ptx.mbarrier(..., "arrive", \1, ...)',
    ),
    (r"T\.ptx\.mbarrier\.arrive\(\.\.\.\)", r'T.ptx.mbarrier(..., "arrive", ...)'),
    (
        r'T\.cuda\.func_call\("ptx_mbarrier_expect_tx", (.*), (\d+), \.\.\.\)',
        rf'T.ptx.mbarrier(\1, {_WORD}, "expect_tx", ...)',
    ),
    (
        r"T\.ptx\.tcgen05\.(alloc|dealloc)\((.*), (\d+), (\d)\)",
        r'T.ptx.tcgen05(\2, T.uint32(\3), "\1", "cta_group::\4", ...)',
    ),
    (r"T\.ptx\.tcgen05\.dealloc\(\.\.\.\)", r'T.ptx.tcgen05(..., "dealloc", ...)'),
    (r"T\.ptx\.tcgen05\.commit\(\.\.\.\)", r'T.ptx.tcgen05(..., "commit", ...)'),
    (
        r"T\.ptx\.tcgen05\.relinquish_alloc_permit\((\d)\)",
        r'T.ptx.tcgen05("relinquish_alloc_permit", "cta_group::\1", ...)',
    ),
    (r"T\.ptx\.tcgen05\.(fence|wait)\.(\w+)\(\)", r'T.ptx.tcgen05("\1::\2", ...)'),
    (r"T\.ptx\.fence\.proxy_async\((.*)\)", r'T.ptx.fence("proxy", "async", \1, "")'),
    (r"T\.ptx\.fence\.mbarrier_init\(\)", r'T.ptx.fence("mbarrier_init", ...)'),
    (r"T\.ptx\.barrier\.cluster\.(\w+)\(\.\.\.\)", r'T.ptx.barrier("cluster", "\1", ...)'),
    (r"T\.ptx\.cp_async\.bulk\.commit_group\(\)", r'T.ptx.cp("async", "bulk", "commit_group", "")'),
    (r"T\.ptx\.cp_async\.bulk\.wait_group\(.*\)", r'T.ptx.cp(..., "wait_group", ...)'),
    (r"T\.ptx\.wgmma\.wait_group\((\d)\)", r'T.ptx.wgmma(\1, "wait_group", ...)'),
    (r"T\.ptx\.wgmma\.(\w+)\(\)", r'T.ptx.wgmma("\1", ...)'),
]


def printed(fragment: str) -> str:
    """A fragment of an example as TVM 0.27 prints it."""
    for pattern, replacement in _RULES:
        fragment = re.sub(pattern, replacement, fragment)
    return fragment
