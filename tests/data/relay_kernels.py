"""Kernels of the made-up family that CONTRIBUTING adds; run as a script, it prints what becomes of them, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tvm.script import tirx as T


def kernel_of(arrivals=1, waits=True, advised=False):
    """Thread 0 puts 7 into shared memory; thread 1 hands it on, once the barrier tells or (advised) both have met."""

    @T.prim_func
    def kernel(D: T.Buffer((1,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((1,), "int32")
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), arrivals)
        T.cuda.cta_sync()
        if lane == 0:
            T.cuda.func_call("relay_put", s.ptr_to([0]), 7, bar.ptr_to([0]), source_code="")  # put
            T.cuda.func_call("relay_wait", source_code="")
        if advised:
            T.cuda.warp_sync()
        if lane == 1:
            if waits:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[0] = s[0]  # read

    return kernel


def line_of(mark):
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(i for i, line in enumerate(lines) if line.endswith(f"# {mark}"))


def ran(**how):
    """Output, findings and counters of one run."""
    from phaseflip import simulate

    run = simulate(kernel_of(**how), [np.zeros(1, np.int32)])
    marks = {"put": line_of("put"), "read": line_of("read")}
    findings = [
        {"title": f.title, "what": f.what, "why": f.why, "fix": f.fix, "details": list(f.details)}
        | marks
        for f in run.findings
    ]
    counters = {name: n for name, n in run.counters.items() if name.startswith("relay.")}
    return {"output": int(run.outputs["D"][0]), "findings": findings, "counters": counters}


def main():
    import phaseflip
    from phaseflip.faults.operators.order import synchronising
    from phaseflip.frontend.tirx.edit.code import Code
    from phaseflip.gemm.compare import MEASURES
    from phaseflip.gemm.target import foreign_instruction

    device = phaseflip.lower(kernel_of()).device
    sites = [s for s in synchronising(Code(kernel_of())) if s.name == "cuda.func_call"]
    seen = {
        "package": phaseflip.__file__,
        "handover": ran(),
        "race": ran(waits=False),
        "advised": ran(waits=False, advised=True),
        "deadlock": ran(arrivals=2),
        "dropped": [str(s.args[0].value) for s in sites],
        "on_hopper": foreign_instruction(device, "sm_90a"),
        "on_blackwell": foreign_instruction(device, "sm_100a"),
        "measured": list(MEASURES.get("relay puts", ())),
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
