"""Findings are values: what is wrong, where, why, and what would fix it. One table of severities, one renderer.

finding: one defect. rules: severities, categories of checks, what to read first. phrases: words that reports share.
report: what a run has found, and its text. Imports errors and ir.
"""

from .finding import Finding, callers
from .phrases import CLUSTER_BARRIER, ONLY_THEN, agree, flip, phase_name
from .report import Findings, errors, render
from .rules import CATEGORIES, KINDS, PRECEDENCE, PROFILES, RULES, Rule, parse_checks

__all__ = [
    "CATEGORIES", "CLUSTER_BARRIER", "KINDS", "ONLY_THEN", "PRECEDENCE", "PROFILES", "RULES", "Finding", "Findings", "Rule",
    "agree", "callers", "errors", "flip", "parse_checks", "phase_name", "render",
]  # fmt: skip
