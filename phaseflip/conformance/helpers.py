"""CUDA helpers for PTX instructions that TVM 0.26 has no intrinsic for, as `T.cuda.func_call` takes them.

The simulator knows them by name (`HELPERS_0_26`), nvcc by their source.
"""

from __future__ import annotations

from typing import Any

_BARRIER = "(unsigned int)__cvta_generic_to_shared(barrier)"


def _test(name: str, instruction: str, operand: str, constraint: str) -> str:
    return f"""
__device__ __forceinline__ unsigned int {name}(void* barrier, {operand} which) {{
  unsigned int done;
  asm volatile("{{ .reg .pred p; {instruction} p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
               : "=r"(done) : "r"({_BARRIER}), "{constraint}"(which) : "memory");
  return done;
}}
"""


def _reduction(op: str) -> str:
    operation = "popc.u32 %0" if op == "popc" else f"{op}.pred q"
    after = "" if op == "popc" else " selp.s32 %0, 1, 0, q;"
    return f"""
__device__ __forceinline__ int ptx_bar_red_{op}(int barrier, int threads, int predicate) {{
  int result;
  asm volatile("{{ .reg .pred p, q; setp.ne.s32 p, %3, 0; barrier.cta.red.{operation.split(".")[0]}.aligned"
               ".{operation.split(".")[1].split()[0]} {operation.split()[1]}, %1, %2, p;{after} }}"
               : "=r"(result) : "r"(barrier), "r"(threads), "r"(predicate) : "memory");
  return result;
}}
"""


SOURCES = {
    "ptx_mbarrier_test_wait_parity": _test(
        "ptx_mbarrier_test_wait_parity", "mbarrier.test_wait.parity.shared::cta.b64", "int", "r"
    ),
    "ptx_mbarrier_test_wait": _test(
        "ptx_mbarrier_test_wait", "mbarrier.test_wait.shared::cta.b64", "unsigned long long", "l"
    ),
    "ptx_mbarrier_try_wait_state": _test(
        "ptx_mbarrier_try_wait_state",
        "mbarrier.try_wait.shared::cta.b64",
        "unsigned long long",
        "l",
    ),
    "ptx_mbarrier_arrive_state": f"""
__device__ __forceinline__ unsigned long long ptx_mbarrier_arrive_state(void* barrier) {{
  unsigned long long state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"({_BARRIER}) : "memory");
  return state;
}}
""",
    **{f"ptx_bar_red_{op}": _reduction(op) for op in ("and", "or", "popc")},
}
"""Name of a helper -> its CUDA source."""

_VALUES = {"ptx_mbarrier_arrive_state": "uint64"}


def helper(name: str, *operands: Any) -> Any:
    """A call of a helper, for use in a kernel."""
    from tvm.script import tirx as T

    kind = "int32" if name.startswith("ptx_bar_red") else "uint32"
    return T.cuda.func_call(
        name, *operands, source_code=SOURCES[name], return_type=_VALUES.get(name, kind)
    )
