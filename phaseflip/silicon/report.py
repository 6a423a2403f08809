"""Tables of a fault study on silicon, in Markdown: what launches showed, beside the simulator and compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..study.mutant_run import CONTROL, EQUIVALENT, KILLED
from .launches import HUNG, TOOLS

CATALOGUE_HEAD = ("fault", "line", "simulator", "passes", "wrong", "hangs", "error", *TOOLS)
OPERATOR_HEAD = (
    "operator",
    "mutants",
    "reported by the simulator",
    "never pass",
    "sometimes",
    "always",
    "of these reported",
)


def merged(
    manifest: dict[str, Any],
    launches: Iterable[dict[str, Any]],
    sanitizer: Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The launched mutants with their counts: "passes", "wrong", "hangs", "failed", "other_bits", and "tools"."""
    counted = {run["stem"]: run for run in launches}
    tools: dict[str, dict[str, Any]] = {}
    for said in sanitizer:
        tools.setdefault(said["stem"], {})[said["tool"]] = said
    control = next((m["stem"] for m in manifest["mutants"] if m["fault"] == CONTROL), "")
    usual = {o["digest"] for o in counted.get(control, {}).get("outputs", [])}
    found = []
    for mutant in manifest["mutants"]:
        run = counted.get(mutant["stem"])
        if run is not None:
            passing = [o for o in run["outputs"] if _passes(o)]
            passes = sum(o["times"] for o in passing)
            outputs = sum(o["times"] for o in run["outputs"])
            found.append(
                mutant
                | {
                    "asked": run["asked"], "launches": run["launches"],
                    "passes": passes, "wrong": outputs - passes, "hangs": run["hangs"],
                    "failed": sum(run["errors"].values()), "errors": run["errors"],
                    "other_bits": sum(o["times"] for o in passing if o["digest"] not in usual),
                    "tools": tools.get(mutant["stem"], {}),
                }
            )  # fmt: skip
    return found


def _passes(output: dict[str, bool]) -> bool:
    """Whether the numeric tests pass: the chapter's tolerance, the derived bound, every element written."""
    return all(output[name] for name in ("tolerance", "bound", "unwritten-output"))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How the numeric test and the simulator compare, over the mutants (the control is no mutant)."""
    mutants = [r for r in rows if r["kind"] != "control"]
    reported = [r for r in mutants if r["fate"] in KILLED]
    return {
        "mutants": len(mutants),
        "launches": sum(r["launches"] for r in mutants),
        "reported": len(reported),
        "reported_and_always_pass": [r["stem"] for r in reported if r["passes"] == r["launches"]],
        "reported_and_sometimes_pass": [
            r["stem"] for r in reported if 0 < r["passes"] < r["launches"]
        ],
        "equivalent_and_not_always_pass": [
            r["stem"] for r in mutants if r["fate"] == EQUIVALENT and r["passes"] < r["launches"]
        ],
        "control": [[r["passes"], r["launches"]] for r in rows if r["kind"] == "control"],
    }


def catalogue_table(rows: Iterable[dict[str, Any]]) -> str:
    """One row for each site of a catalogued fault, the control first."""
    lines = []
    for r in rows:
        if r["kind"] != "mutation":
            tools = [_tool(r["tools"].get(tool)) for tool in TOOLS]
            said = _says(r)
            of = f" of {r['launches']}" if r["launches"] < r["asked"] else ""
            counts = [f"{r[k]}{of}" if r[k] else "" for k in ("passes", "wrong", "hangs", "failed")]
            lines.append([r["fault"], r["site"].rpartition(":")[2], said, *counts, *tools])
    return markdown(CATALOGUE_HEAD, lines)


def _says(row: dict[str, Any]) -> str:
    """The simulator's first finding."""
    if row["fate"] in KILLED:
        return f"`{row['codes'][0]}`"
    return "nothing" if row["fate"] == EQUIVALENT else str(row["fate"])


def _tool(said: dict[str, Any] | None) -> str:
    """How many errors a tool reports, "-" for none, and whether the launch hung."""
    if said is None:
        return ""
    if said["errors"] in (HUNG, 0):
        return HUNG if said["hung"] else "-"
    return f"{said['errors']}" + (f" ({HUNG})" if said["hung"] else "")


def operator_table(rows: Iterable[dict[str, Any]]) -> str:
    """One row for each operator: of its mutants, how many pass never, sometimes, always."""
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        if r["kind"] == "mutation":
            by_operator.setdefault(r["fault"], []).append(r)
    lines: list[list[Any]] = []
    for operator, group in by_operator.items():
        always = [r for r in group if r["passes"] == r["launches"]]
        never = [r for r in group if not r["passes"]]
        reported = [r for r in group if r["fate"] in KILLED]
        both = [r for r in always if r["fate"] in KILLED]
        rest = len(group) - len(always) - len(never)
        lines.append(
            [operator, len(group), len(reported), len(never), rest, len(always), len(both)]
        )
    total = [sum(line[i] for line in lines) for i in range(1, len(OPERATOR_HEAD))]
    return markdown(OPERATOR_HEAD, [*lines, ["all", *total]] if lines else [])


def missed_table(rows: Iterable[dict[str, Any]]) -> str:
    """The mutants of the operators that the simulator reports and that pass in every launch, by operator."""
    by_operator: dict[str, list[str]] = {}
    for r in rows:
        if r["kind"] == "mutation" and r["fate"] in KILLED and r["passes"] == r["launches"]:
            line = r["site"].rpartition(":")[2]
            text = f"{r['site_index']}: {line} {_says(r)}"
            by_operator.setdefault(r["fault"], []).append(text)
    lines = [[operator, ", ".join(texts)] for operator, texts in by_operator.items()]
    return markdown(("operator", "site: line, what the simulator reports"), lines)


def markdown(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows) + "\n"
