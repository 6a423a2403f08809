"""A time limit on every wait for an mbarrier in CUDA source, so that most hangs on a GPU end by themselves.

TVM compiles a wait into a loop around mbarrier.try_wait, which by itself gives up after a while ("potentially blocking",
PTX ISA, mbarrier.test_wait/try_wait). After a try that failed the loop compares %globaltimer with what it was after the
first such try, and gives up. A wait that succeeds at once executes no further instruction.

What happens then is one of two things. TRAP ends the launch with a CUDA error, which nobody overlooks and which costs the
process. GO_ON ends the wait as if it had succeeded, and with it all later waits of the launch (known by %gridid) that would
not succeed at once: the launch returns, with whatever it computed, and must be known by its duration to have hung; but
any number of hangs can be observed in one process, and no thread misses a barrier because another one has gone. Its tries
give up by themselves after a tenth of a millisecond, not the 10 that TVM asks for, since every later wait costs one.

A thread that went on touches no mbarrier any more: it does not arrive and starts no copy that would complete there. An
arrival that the phase of an mbarrier does not lack makes an H200 stop the launch with a CUDA error, which would cost the
process after all. What a thread knows of itself is in a predicate register of the kernel.
"""

from __future__ import annotations

import re

from phaseflip.errors import BadInput

MOST_MS = 600_000
TRAP, GO_ON = "trap", "go on"
TRAPPED = "unspecified launch failure"
"""What CUDA calls the error of a kernel that executed `trap` (cudaErrorLaunchFailure)."""

_LOOP = re.compile(
    r'"(?P<label>\w+):\\n"\s*'
    r'(?P<poll>"mbarrier\.(?:try|test)_wait[^"]*"\s*"@\w+\s+bra\.uni\s+(?P<done>\w+);\\n"\s*)'
    r'(?P<again>"bra\.uni\s+(?P=label);\\n")'
)
_ANY_LOOP = re.compile(
    r'"\w+:\\n"\s*"mbarrier\.(?:try|test)_wait[^"]*"\s*"@[^"]*"\s*(?!"mov\.u64\s+NOW)"'
)
_LIMITED = r"""".reg .pred                FIRST, LATE;\\n"
        ".reg .u64                 SINCE, NOW, GRID;\\n"
        "mov.u64                   SINCE, 0;\\n"
        "\g<label>:\\n"
        \g<poll>"mov.u64                   NOW, %%globaltimer;\\n"
        "setp.eq.u64               FIRST, SINCE, 0;\\n"
        "@FIRST mov.u64            SINCE, NOW;\\n"
        "sub.u64                   NOW, NOW, SINCE;\\n"
        "setp.gt.u64               LATE, NOW, {limit_ns};\\n"
        {at_limit}
        \g<again>"""
_AT_LIMIT = {
    TRAP: r'''"@LATE                     trap;\\n"''',
    GO_ON: r'''"mov.u64                   GRID, %%gridid;\\n"
        "@LATE st.volatile.global.u64 [phaseflip_gave_up], GRID;\\n"
        "ld.volatile.global.u64    NOW, [phaseflip_gave_up];\\n"
        "setp.eq.u64               LATE, NOW, GRID;\\n"
        "@LATE mov.pred            phaseflip_signals, 0;\\n"
        "@LATE bra                 \g<done>;\\n"''',
}
_HINT = re.compile(r"(mbarrier\.try_wait[^\"]*\], %\d+), %\d+;")  # suspendTimeHint, in ns
_KERNEL = re.compile(r'extern "C" __global__ [^;{]*\{')
_PREDICATE = r"""
  asm volatile(".reg .pred phaseflip_signals;\n" "mov.pred phaseflip_signals, 1;\n");  // does this thread"""
_SIGNAL = re.compile(
    r'"(?=(?:mbarrier\.(?:arrive|expect_tx|complete_tx)|cp\.async\.mbarrier\.arrive|tcgen05\.commit|st\.async'
    r'|[\w.:]+mbarrier::complete_tx::bytes)[.\s])'
)  # fmt: skip
"""The start of every instruction that signals an mbarrier."""
_GAVE_UP = "__device__ unsigned long long phaseflip_gave_up = ~0ull;  // %gridid of the last one\n"


def check_poll_limit(limit_ms: int) -> int:
    """The limit itself; BadInput unless it is 0 (none) to MOST_MS milliseconds."""
    if not 0 <= limit_ms <= MOST_MS:
        raise BadInput(f"a poll limit is 0 (none) to {MOST_MS} ms, and {limit_ms} is not")
    return limit_ms


def limit_polls(source: str, limit_ms: int, at_limit: str = TRAP) -> str:
    """CUDA source whose waits for an mbarrier give up after `limit_ms` milliseconds; 0 leaves it as it is.

    Raises BadInput where the source waits in a loop of a form that is not known.
    """
    if not limit_ms:
        return source
    limited = _LOOP.sub(
        _LIMITED.format(limit_ns=limit_ms * 1_000_000, at_limit=_AT_LIMIT[at_limit]), source
    )
    unknown = len(_ANY_LOOP.findall(limited))
    if unknown:
        raise BadInput(
            f"{unknown} of the waits for an mbarrier in the CUDA source have a form that no poll limit is known for;"
            " build it without one"
        )
    return _going_on(limited) if at_limit == GO_ON else limited


def _going_on(limited: str) -> str:
    """The rest of what GO_ON needs: short tries, the names of the grid and the predicate, and signals that heed it."""
    short = _HINT.sub(r"\1, 100000;", limited)
    return _GAVE_UP + _KERNEL.sub(
        lambda m: m[0] + _PREDICATE, _SIGNAL.sub('"@phaseflip_signals ', short)
    )
