"""The page of a study: one HTML file that needs no network, made from the outcomes alone.

A matrix of faults by kernels for each oracle, what each oracle would have noticed alone, and for every mutant the line
that was changed, what it became, and the finding.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from .mutant_run import CONTROL, FATES, KILLED, NOT_APPLICABLE, NOTICES, ORACLES, PASSES, Outcome
from .results import MutantResult, faults_in_order, mutants, numbers_pass, summary

TEMPLATE = "study.html.jinja"
COLOURS = {NOTICES: "#1f6f78", PASSES: "#f0cfa3", NOT_APPLICABLE: "#d5d9dd"}
"""Noticed, missed, nothing to judge. Also in the template's style."""

MEANING = {
    "tolerance": "the chapter's test: within rtol and atol of a float32 reference",
    "bound": "every element where float32 accumulation in any order can put it",
    "exact": "bit equality, on small integers",
    "unwritten-output": "every element of D was written",
    "ordering": "races, missing fences, scopes",
    "protocol": "barriers, phases, collectives, who issues what",
    "lifecycle": "memory safety and the life of TMEM",
    "deadlock": "something can always run",
}


def write_report(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the page; the file appears whole or not at all."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(render_report(outcomes), encoding="utf-8")
    os.replace(unfinished, path)


def render_report(outcomes: Sequence[Outcome]) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(page(outcomes))


def page(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the template shows."""
    results = mutants(outcomes)
    kernels = list(dict.fromkeys(m.kernel for m in results))
    faults = faults_in_order(results)
    wrong = [o for o in outcomes if o["fate"] in KILLED]
    counts = Counter(m.fate for m in results if m.fault != CONTROL)
    return {
        "version": __version__,
        "kernels": kernels,
        "oracles": [{"name": name, "meaning": MEANING[name]} for name in ORACLES],
        "schedules": list(dict.fromkeys(o["schedule"] for o in outcomes)),
        "fates": {fate: counts[fate] for fate in FATES},
        "summary": summary(outcomes),
        "wrong_runs": len(wrong),
        "plot": detection_plot(wrong),
        "fate_matrix": _fate_matrix(results, faults, kernels),
        "matrices": {name: _matrix(results, faults, kernels, name) for name in ORACLES},
        "interesting": _interesting(results),
        "details": [_detail(f, [m for m in results if m.fault == f]) for f in faults],
        "anchor": anchor,
    }


def anchor(kernel: str, fault: str) -> str:
    """The id of the details of a fault in a kernel."""
    return "at-" + re.sub(r"[^A-Za-z0-9_-]+", "-", f"{kernel}-{fault}")


# --- matrices ------------------------------------------------------------------------------------


def _pick(results: Iterable[MutantResult], fault: str, kernel: str) -> list[MutantResult]:
    return [m for m in results if (m.fault, m.kernel) == (fault, kernel)]


def _fate_matrix(
    results: list[MutantResult], faults: list[str], kernels: list[str]
) -> list[dict[str, Any]]:
    """Rows of cells {kernel, text, style, note}: the fates of a fault's mutants in a kernel."""
    rows = []
    for fault in faults:
        cells = []
        for kernel in kernels:
            here = _pick(results, fault, kernel)
            fates = Counter(m.fate for m in here)
            text = ", ".join(f"{n} {f}" if len(here) > 1 else f for f, n in fates.items())
            worst = max(fates, key=FATES.index, default="")
            cells.append(
                {"kernel": kernel, "text": text, "style": worst.replace(" ", "-"), "note": ""}
            )
        rows.append({"fault": fault, "cells": cells})
    return rows


def _matrix(
    results: list[MutantResult], faults: list[str], kernels: list[str], oracle: str
) -> list[dict[str, Any]]:
    """As `_fate_matrix`: in how many of the runs of wrong kernels the oracle, on its own, notices."""
    rows = []
    for fault in faults:
        if fault == CONTROL:
            continue
        cells = []
        for kernel in kernels:
            here = _pick(results, fault, kernel)
            runs = [run for m in here for run in m.runs if run["fate"] in KILLED]
            said = Counter(run["oracles"][oracle] for run in runs)
            judged = said[NOTICES] + said[PASSES]
            alone = sum(run["oracles"][oracle] == NOTICES and numbers_pass(run) for run in runs)
            cell = {"kernel": kernel, "text": "", "style": "", "note": ""}
            if here and not runs:
                cell |= {"text": "no wrong run", "style": "none"}
            elif runs and not judged:
                cell |= {"text": "no result", "style": "none"}
            elif runs:
                style = "all" if said[NOTICES] == judged else "some" if said[NOTICES] else "missed"
                cell |= {"text": f"{said[NOTICES]} of {judged}", "style": style}
                if alone and oracle not in ("tolerance", "bound"):
                    cell["note"] = f"in {alone} of these runs the tolerance test passes"
            cells.append(cell)
        rows.append({"fault": fault, "cells": cells})
    return rows


def _interesting(results: list[MutantResult]) -> list[dict[str, Any]]:
    """Where the numbers pass and the kernel is wrong: by fault and kernel, under which schedules, and who notices."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for mutant in results:
        found.setdefault((mutant.fault, mutant.kernel), []).extend(
            run for run in mutant.runs if run["fate"] in KILLED
        )
    rows = []
    for (fault, kernel), runs in found.items():
        passing = [run for run in runs if numbers_pass(run)]
        if passing:
            rows.append(
                {
                    "fault": fault,
                    "kernel": kernel,
                    "passing": len(passing),
                    "runs": len(runs),
                    "schedules": list(dict.fromkeys(run["schedule"] for run in passing)),
                    "noticed_by": [
                        o for o in ORACLES if any(run["oracles"][o] == NOTICES for run in passing)
                    ],
                    "codes": list(dict.fromkeys(code for run in passing for code in run["codes"])),
                }
            )
    return rows


def _detail(fault: str, results: list[MutantResult]) -> dict[str, Any]:
    return {
        "fault": fault,
        "sentence": next((m.first["sentence"] for m in results if m.first["sentence"]), ""),
        "kernels": {
            kernel: [
                {
                    "fate": m.fate,
                    "first": m.first,
                    "runs": m.runs,
                    "equivalent_runs": m.valid_runs if m.fate == "equivalent" else 0,
                }
                for m in results
                if m.kernel == kernel
            ]
            for kernel in dict.fromkeys(m.kernel for m in results)
        },
    }


# --- plot ----------------------------------------------------------------------------------------


def detection_plot(wrong: Sequence[Outcome]) -> str:
    """Of the runs of wrong kernels, how many each oracle notices on its own: one bar each, as an SVG element."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "phaseflip", "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8.6, 3.5), layout="constrained")
        axes = figure.subplots()
        left = [0] * len(ORACLES)
        for said, colour in COLOURS.items():
            widths = [sum(run["oracles"][name] == said for run in wrong) for name in ORACLES]
            bars = axes.barh(ORACLES, widths, left=left, color=colour, height=0.66, label=said)
            wide_enough = max(1.0, len(wrong) / 25)
            labels = [str(width) if width >= wide_enough else "" for width in widths]
            axes.bar_label(
                bars,
                labels,
                label_type="center",
                color="white" if said == NOTICES else "#5a4632",
                fontsize=9,
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlim(0, max(1, len(wrong)))
        axes.set_xlabel("runs of kernels that are wrong", fontsize=9, color="#555")
        axes.tick_params(axis="both", length=0, labelsize=9.5, colors="#333")
        axes.spines[:].set_visible(False)
        axes.legend(
            ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, fontsize=9,
            handlelength=1, handleheight=1, borderpad=0,
        )  # fmt: skip
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
