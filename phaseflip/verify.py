"""Run one kernel at one shape and judge its result: the step that CLI and tests share."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phaseflip import oracle
from phaseflip.errors import BadInput
from phaseflip.finding import Finding, Findings, Place, errors, render
from phaseflip.gpu_run import current_gpu
from phaseflip.inputs import make_inputs, numpy_dtype
from phaseflip.kernel import Kernel
from phaseflip.kernel_files import one_line, users_code
from phaseflip.oracle import OracleResult
from phaseflip.schedule import DEFAULT_LIMIT, parse_schedule

if TYPE_CHECKING:
    from phaseflip.gpu_run import Gpu

GATES = ("bound", "tolerance", "exact", "all")
"""Which oracle decides: one of the three, or every one that applies."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one run. `run` is the simulator's Run, D the output matrix (M, N).

    `max_abs_error` is the gate's: |D - reference|, inf where only one of the two is finite.
    `oracles` are, in order, tolerance, bound, exact and unwritten-output; `source` is where the
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
    gpu: Gpu | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Verdict:
    """Run `kernel` on `make_inputs(inputs, M, N, K, seed)` and judge D, poisoned beforehand.

    It runs in the simulator, or on a GPU where one is given, or is the current one; there schedule, checks and profile
    say nothing. The run passes if the gate's oracle does not fail, every element of D was written, and no finding is an
    error; under schedule explore, of at most `limit` runs, none may differ.

    Raises BadInput for a bad shape, seed, kind of inputs, schedule or gate.
    """
    gpu = gpu or current_gpu()
    if not isinstance(kernel, Kernel):
        raise BadInput(
            f"verify takes a phaseflip.Kernel, as find_kernel('hgemm_v1') gives one, not {kernel!r:.80}"
        )
    if gate not in GATES:
        raise BadInput(f"unknown gate {gate!r}; known are {', '.join(GATES)}")
    parse_schedule(schedule)
    Findings(checks, profile)  # refuses unknown names before anything is lowered
    shape = kernel.check_shape(M, N, K)
    operands = kernel.operands(*shape)
    A, B = make_inputs(inputs, *shape, seed, operands.dtype)
    D = np.empty(shape[:2], numpy_dtype(operands.dtype))
    oracle.fill_poison(D)
    run: Any
    if gpu is not None:
        run = gpu.run(kernel, shape, (A, B, D))
    else:
        from phaseflip.simulator import simulate

        run = simulate(
            lowered(kernel, *shape),
            (A, B, D),
            schedule=schedule,
            checks=checks,
            progress=progress,
            profile=profile,
            limit=limit,
        )
    result = run.outputs[operands.names[2]]
    oracles = [
        oracle.seed_tolerance_test(result, A, B, kernel.tolerance, _reference(kernel)),
        oracle.bound_test(result, A, B),
        oracle.exact_test(result, A, B),
        oracle.unwritten_test(result),
    ]
    deciding = _deciding(oracles, gate)
    differs = gpu is None and run.explored is not None and bool(run.explored.difference)
    if all(r.passed is None for r in deciding if r.name == gate) and gate != "all":
        raise BadInput(f"the {gate} gate cannot judge inputs {inputs!r}: {deciding[0].message}")
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
        ),
        source=_source_of(kernel),
    )


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
    gpu: Gpu | None = None,
) -> str:
    """Return the shell command that repeats a run."""
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
    return shlex.join(map(str, words))


def lowered(kernel: Kernel, M: int, N: int, K: int) -> Any:
    """Return the LoweredKernel of `kernel` at this shape, lowered once while it stays cached."""
    from phaseflip.capability import needed
    from phaseflip.devices import default_arch
    from phaseflip.lowering import lower_once

    arch = default_arch(needed(kernel, kernel.check_shape(M, N, K)))
    return lower_once(kernel.build(M, N, K), arch)


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
    return errors.get(gate, errors["bound"])


def _source_of(kernel: Kernel) -> Place:
    """File and line of the kernel's factory, as far as it has one."""
    code = getattr(inspect.unwrap(kernel.factory), "__code__", None)
    return Place() if code is None else Place("", code.co_filename, code.co_firstlineno)
