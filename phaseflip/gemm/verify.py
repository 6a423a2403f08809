"""Run one kernel at one shape and judge its result: the step that CLI and tests share."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from phaseflip.errors import BadInput
from phaseflip.findings import Finding, Findings, errors, render
from phaseflip.gemm import oracle, poison
from phaseflip.gemm.inputs import make_inputs
from phaseflip.gemm.kernel import Kernel, Operands
from phaseflip.gemm.oracle import OracleResult
from phaseflip.gemm.runner import Runner, current_runner
from phaseflip.ir import arithmetic as operators
from phaseflip.ir.place import Place
from phaseflip.run.schedule import DEFAULT_LIMIT, parse_schedule
from phaseflip.system.user_code import one_line, users_code

GATES = ("bound", "tolerance", "exact", "all")
"""Which oracle decides: one of the three, or every one that applies."""

NO_REFERENCE = "there is no reference for what is not D[M, N] = A[M, K] B[N, K]^T"
_NONE: Mapping[str, str | int | float] = MappingProxyType({})


@dataclass(frozen=True)
class Verdict:
    """The outcome of one run. `run` is the simulator's Run, D the output matrix (M, N), or the first of several outputs.

    `max_abs_error` is the gate's: |D - reference|, inf where only one of the two is finite, NaN without a reference.
    `oracles` are, in order, tolerance, bound, exact and unwritten-output, the last one for each output; `source` is where the
    kernel's factory stands.
    """

    kernel: str
    shape: tuple[int, int, int]
    device: str
    schedule: str
    run: Any
    D: np.ndarray
    oracles: list[OracleResult]
    gate: str
    passed: bool
    max_abs_error: float
    replay: str
    source: Place = Place()

    @property
    def findings(self) -> list[Finding]:
        """What the run found and, unless that stopped it, one for each deciding oracle that failed.

        In a run that was stopped numbers are missing in consequence; `oracles` shows it all the same.
        """
        found: list[Finding] = list(self.run.findings)
        if self.run.stopped:
            return found
        wrong = [r for r in _deciding(self.oracles, self.gate) if r.passed is False]
        return found + [
            Finding(
                "unwritten-output" if r.name == "unwritten-output" else "wrong-result",
                r.message,
                place=self.source,
            )
            for r in wrong
        ]

    @property
    def message(self) -> str:
        """What ran, the verdict and why; for a failure the last line is the one that replays it."""
        M, N, K = self.shape
        what = f"{self.kernel} {M}x{N}x{K} {self.schedule}"
        if self.passed:
            return f"{what}: passed, largest error {self.max_abs_error:.3g}"
        reasons = [render(finding) for finding in errors(self.findings)]
        return "\n".join([f"{what}: FAILED", *reasons, f"replay: {self.replay}"])

    def oracle(self, name: str) -> OracleResult:
        """Return the result of the oracle of that name; KeyError if there is none."""
        return {result.name: result for result in self.oracles}[name]

    def to_json(self) -> dict[str, Any]:
        """A dict for strict JSON; a max_abs_error that is not finite becomes None."""
        explored = getattr(self.run, "explored", None)
        return {
            "kernel": self.kernel,
            "shape": list(self.shape),
            "schedule": self.schedule,
            "device": self.device,
            "passed": self.passed,
            "max_abs_error": self.max_abs_error if np.isfinite(self.max_abs_error) else None,
            "findings": [finding.to_json() for finding in self.findings],
            "counters": {name: int(count) for name, count in self.run.counters.items()},
            "seconds": {name: float(time) for name, time in self.run.seconds.items()},
            "replay": self.replay,
            "oracles": [result.to_json() for result in self.oracles],
            **({"explored": explored.to_json()} if explored is not None else {}),
        }


def verify(
    kernel: Kernel,
    M: int,
    N: int,
    K: int,
    *,
    seed: int = 0,
    inputs: str = "normal",
    schedule: str = "in-order",
    checks: str = "all",
    gate: str = "bound",
    progress: Any = None,
    profile: str = "ptx",
    gpu: Runner | None = None,
    outputs: Sequence[str] = (),
    scalars: Mapping[str, str | int | float] = _NONE,
    limit: int = DEFAULT_LIMIT,
) -> Verdict:
    """Run `kernel` on inputs by name and seed and judge its outputs, poisoned beforehand.

    It runs in the simulator, or on a GPU where one is given, or is the current one; there schedule, checks and profile
    say nothing. A GEMM (`Kernel.gemm`) runs on `make_inputs(inputs, M, N, K, seed)`, and passes if the gate's oracle does
    not fail, every element of D was written, and no finding is an error; under schedule explore, of at most `limit` runs,
    none may differ. Of another function, in the simulator alone, `outputs` are the buffers to judge (by default those that
    it writes) and `scalars` the numbers that it takes by value; no reference is known, so only elements that were never
    written and findings fail it.
    Raises BadInput for a bad shape, seed, kind of inputs, schedule, gate, output or number.
    """
    gpu = gpu or current_runner()
    if not isinstance(kernel, Kernel):
        raise BadInput(
            f"verify takes a phaseflip.Kernel, as find_kernel('hgemm_v1') gives one, not {kernel!r:.80}"
        )
    if gate not in GATES:
        raise BadInput(f"unknown gate {gate!r}; known are {', '.join(GATES)}")
    parse_schedule(schedule)
    Findings(checks, profile)  # refuses unknown names before anything is lowered
    shape = kernel.check_shape(M, N, K)
    operands = kernel.operands(*shape) if gpu is not None else kernel.gemm(*shape)
    how = {
        "schedule": schedule, "checks": checks, "progress": progress, "profile": profile, "limit": limit
    }  # fmt: skip
    if gpu is not None and (outputs or scalars):
        raise BadInput(
            "outputs and numbers by value are chosen in the simulator alone (--device sim)"
        )
    if operands is not None and not scalars and tuple(outputs) in ((), operands.names[2:]):
        run, result, oracles = _run_gemm(kernel, shape, operands, inputs, seed, gpu, how)
        if all(r.passed is None for r in oracles if r.name == gate) and gate != "all":
            reason = next(r.message for r in oracles if r.name == gate)
            raise BadInput(f"the {gate} gate cannot judge inputs {inputs!r}: {reason}")
    else:
        run, result, oracles = _run_any(kernel, shape, inputs, seed, outputs, scalars, how)
    deciding = _deciding(oracles, gate)
    differs = gpu is None and run.explored is not None and bool(run.explored.difference)
    return Verdict(
        kernel=kernel.name,
        shape=shape,
        device="sim" if gpu is None else "cuda",
        schedule=run.schedule,
        run=run,
        D=result,
        oracles=oracles,
        gate=gate,
        passed=all(r.passed is not False for r in deciding)
        and not errors(run.findings)
        and not differs,
        max_abs_error=_gate_error(oracles, gate),
        replay=replay_line(
            kernel.name,
            *shape,
            seed=seed,
            schedule=run.explored.difference if differs else run.schedule,
            inputs=inputs,
            checks=checks,
            profile=profile,
            gpu=gpu,
            outputs=outputs,
            scalars=scalars,
        ),
        source=_source_of(kernel),
    )


Shape = tuple[int, int, int]
Judged = tuple[Any, np.ndarray, list[OracleResult]]
"""The run, D or the first output, and what the oracles say."""


def _run_gemm(
    kernel: Kernel, shape: Shape, operands: Operands, inputs: str, seed: int, gpu: Runner | None, how: dict[str, Any]
) -> Judged:  # fmt: skip
    A, B = make_inputs(inputs, *shape, seed, operands.dtype)
    D = np.empty(shape[:2], operators.numpy_dtype(operands.output_dtype))
    poison.fill_poison(D)
    run: Any
    if gpu is not None:
        run = gpu.run(kernel, shape, (A, B, D))
    else:
        from phaseflip.run.simulator import simulate

        run = simulate(lowered(kernel, *shape), (A, B, D), **how)
    D = run.outputs[operands.names[2]]
    reference = _reference(kernel)
    if (
        operands.output_dtype != operands.dtype
    ):  # a kernel with a reference of its own says its dtype
        reference = functools.partial(oracle.reference, output=D.dtype)
    oracles = [
        oracle.seed_tolerance_test(D, A, B, kernel.tolerance, reference),
        oracle.bound_test(D, A, B),
        oracle.exact_test(D, A, B),
        poison.unwritten_test(D),
    ]
    return run, D, oracles


def _run_any(
    kernel: Kernel,
    shape: Shape,
    inputs: str,
    seed: int,
    outputs: Sequence[str],
    scalars: Mapping[str, str | int | float],
    how: dict[str, Any],
) -> Judged:
    """The run of a function of any parameters; its outputs are judged by whether all of their elements were written."""
    from phaseflip.gemm.arguments import make_arguments
    from phaseflip.run.simulator import simulate

    program = lowered(kernel, *shape)
    given = make_arguments(program, shape, inputs, seed, outputs, scalars)
    run = simulate(program, list(given.values.values()), **how)
    oracles = [
        OracleResult(name, None, float("nan"), f"not applicable: {NO_REFERENCE}")
        for name in ("tolerance", "bound", "exact")
    ]
    again: dict[str, np.ndarray] = {}
    found = {name: run.outputs[name] for name in given.outputs}
    by_chance = [d for d in found.values() if not poison.certain(d.dtype)]
    if not run.stopped and any(poison.unwritten(d).any() for d in by_chance):
        second = list(given.poisoned_again().values.values())
        again = simulate(program, second, **how | {"checks": "none"}).outputs
    oracles += [poison.unwritten_test(d, name, again.get(name)) for name, d in found.items()]
    return run, next(iter(found.values())), oracles


def replay_line(
    kernel: str,
    M: int,
    N: int,
    K: int,
    *,
    seed: int,
    schedule: str,
    inputs: str,
    checks: str = "all",
    profile: str = "ptx",
    gpu: Runner | None = None,
    outputs: Sequence[str] = (),
    scalars: Mapping[str, str | int | float] = _NONE,
) -> str:
    """Return the shell command that repeats a run."""
    chosen = [word for name in outputs for word in ("--out", name)]
    chosen += [word for pair in scalars.items() for word in ("--scalar", "=".join(map(str, pair)))]
    words = ["python", "-m", "phaseflip", "run", kernel, M, N, K, "--seed", seed]
    if gpu is None:
        words += ["--schedule", schedule]
    else:
        words += ["--device", "cuda"]
        words += [] if gpu.directory is None else ["--prebuilt", gpu.directory]
    defaults = {"inputs": "normal", "checks": "all", "profile": "ptx"}
    for option, value in (("inputs", inputs), ("checks", checks), ("profile", profile)):
        if value != defaults[option]:
            words += [f"--{option}", value]
    return shlex.join(map(str, [*words, *chosen]))


def lowered(kernel: Kernel, M: int, N: int, K: int) -> Any:
    """Return the LoweredKernel of `kernel` at this shape, lowered once while it stays cached."""
    from phaseflip.frontend.tirx.lowering import lower_once
    from phaseflip.gemm.target import default_arch, needed

    arch = default_arch(needed(kernel, kernel.check_shape(M, N, K)))
    return lower_once(kernel.function(M, N, K), arch)


def _deciding(oracles: list[OracleResult], gate: str) -> list[OracleResult]:
    return [r for r in oracles if gate == "all" or r.name in (gate, "unwritten-output")]


def _reference(kernel: Kernel) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The kernel's own reference; BadInput where it fails, or returns what cannot be compared with D."""
    if kernel.reference is oracle.reference:
        return oracle.reference

    def reference(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        try:
            with users_code():
                D = kernel.reference(A, B)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # anybody's code, as factories are
            raise BadInput(f"the reference of {kernel.name} failed: {one_line(error)}") from error
        shape = (len(A), len(B))
        if not isinstance(D, np.ndarray) or D.shape != shape or D.dtype != A.dtype:
            raise BadInput(
                f"the reference of {kernel.name} must return D, a NumPy array of {A.dtype.name} and shape {shape}"
            )
        return D

    return reference


def _gate_error(oracles: list[OracleResult], gate: str) -> float:
    """The gate's largest error; the bound's where the gate is "all" or does not apply."""
    errors = {r.name: r.max_abs_error for r in oracles if r.passed is not None}
    return errors.get(gate, errors.get("bound", float("nan")))


def _source_of(kernel: Kernel) -> Place:
    """File and line of the kernel's factory, as far as it has one."""
    code = getattr(inspect.unwrap(kernel.factory), "__code__", None)
    return Place() if code is None else Place("", code.co_filename, code.co_firstlineno)
