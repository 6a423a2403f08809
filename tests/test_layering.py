"""The rules that keep the library in layers: who may import the compiler, who may print, size."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "phaseflip"
MODULES = sorted(PACKAGE.rglob("*.py"))
TVM_FREE_MODULES = ("vector_clock", "finding", "race_detector", "schedule", "oracle")
MAY_IMPORT_TVM_AT_MODULE_LEVEL = (
    "tir.py",
    "tir_places.py",
    "tir_edit.py",
    "tir_nodes.py",
    "lowering.py",
    "instructions.py",
    "tvm_names.py",
    "table.py",
    "statements.py",
    "spelled_as_0_26.py",
    "spelled_copies.py",
    "spelled_parts.py",
)
MAX_LINES = 400


def dotted(path: Path) -> str:
    """phaseflip/machine/memory/load_store.py -> phaseflip.machine.memory.load_store"""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_roots(tree: ast.AST) -> set[str]:
    """The top-level packages that any statement in `tree` imports, however deep it stands."""
    roots: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def imported_on_load(tree: ast.Module) -> set[str]:
    """As `imported_roots`, without the bodies of functions and `if TYPE_CHECKING:`."""
    roots: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            roots |= imported_roots(node)
        pending += ast.iter_child_nodes(node)
    return roots


def tvm_free_files() -> list[Path]:
    named = [PACKAGE / f"{name}.py" for name in TVM_FREE_MODULES]
    return [f for f in named if f.exists()] + sorted((PACKAGE / "machine").rglob("*.py"))


def test_clocks_findings_schedules_oracle_and_machine_never_import_tvm() -> None:
    files = tvm_free_files()
    assert PACKAGE / "oracle.py" in files and len(files) > 2
    guilty = [
        f.name for f in files if {"tvm", "tvm_ffi"} & imported_roots(ast.parse(f.read_text()))
    ]
    assert guilty == []
    names = [dotted(f) for f in files]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    found = [m for m in sys.modules if m.split('.')[0] in ('tvm', 'tvm_ffi')]\n"
        "    assert not found, f'{name} brought in {found[:3]}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_module_keeps_the_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_LINES, f"split {path.name} before it passes {MAX_LINES}"
    assert ast.get_docstring(tree), f"{path.name} has no docstring"
    if path.name not in MAY_IMPORT_TVM_AT_MODULE_LEVEL:
        assert "tvm" not in imported_on_load(tree), f"{path.name} imports TVM when it is loaded"
    if path.name != "cli.py":
        calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
        prints = [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
        assert prints == [], f"{path.name} prints in lines {prints}"


def test_import_phaseflip_loads_neither_numpy_nor_the_compiler() -> None:
    code = (
        "import sys, phaseflip\n"
        "heavy = {'tvm', 'torch', 'numpy', 'hypothesis', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert phaseflip.BadInput.__name__ == 'BadInput'\n"
        "assert 'tvm' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr


def test_every_name_that_phaseflip_promises_exists() -> None:
    import phaseflip

    for name in phaseflip.__all__:
        assert getattr(phaseflip, name) is not None
    assert set(phaseflip.__all__) <= set(dir(phaseflip))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = phaseflip.nonsense
