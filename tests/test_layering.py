"""The rules that keep the library in layers: what may import what, who may print, size."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "phaseflip"
MODULES = sorted(PACKAGE.rglob("*.py"))
ORDER = (
    "grammar", "errors", "system", "ir", "findings", "ordering", "races", "machine", "translate", "frontend", "spelling", "run",
    "gemm", "gpu", "faults", "timing", "study", "silicon", "conformance", "cli", "pytest_plugin",
)  # fmt: skip
"""Each imports only what stands before it."""

FACES = {"phaseflip", "phaseflip.verify", "phaseflip.__main__"}
"""Of the package itself: they import what they offer, and nobody imports them but for the version."""

UPWARDS: set[tuple[str, str]] = set()
"""Known violations: none."""

KNOTS = ("phaseflip.machine.", "phaseflip.frontend.tirx.edit.")
"""Packages in which modules name one another's types (`if TYPE_CHECKING`); to be emptied. Nothing may tie on loading."""

MAY_IMPORT_TVM = ("phaseflip.frontend.", "phaseflip.faults.")
IMPORT_TVM_IN_FUNCTIONS = {
    "phaseflip.spelling", "phaseflip.gemm.kernel", "phaseflip.gpu.build", "phaseflip.gpu.runtime",
    "phaseflip.conformance.generated_text", "phaseflip.conformance.helpers",
}  # fmt: skip
"""Beyond those: what compiles, launches, or is a kernel itself."""

MAX_LINES = 400
MAX_MODULES = 15


def dotted(path: Path) -> str:
    """phaseflip/machine/memory/load_store.py -> phaseflip.machine.memory.load_store"""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in MODULES}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(tree: ast.Module, on_load: bool) -> list[ast.Import | ast.ImportFrom]:
    """All imports, however deep; on_load: without the bodies of functions and `if TYPE_CHECKING:`."""
    found: list[ast.Import | ast.ImportFrom] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if on_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if on_load and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        pending += ast.iter_child_nodes(node)
    return found


def imported(path: Path, on_load: bool = False) -> set[str]:
    """Dotted names of what a file imports: of the library its modules, of others their top-level package."""
    inside = path.relative_to(PACKAGE.parent).parts[:-1]
    found = set()
    for node in statements(parsed(path), on_load):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = list(inside[: len(inside) - node.level + 1]) if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            names = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in FILES else source for name in names]
        found |= {name if name.startswith("phaseflip") else name.split(".")[0] for name in names}
    return found - {dotted(path)}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def in_layers() -> list[str]:
    return [name for name in FILES if name not in FACES]


def test_the_order_names_every_package() -> None:
    assert sorted(ORDER) == sorted({package_of(name) for name in in_layers()})


def test_each_package_imports_only_packages_before_it() -> None:
    upwards = {
        (name, package_of(other))
        for name in in_layers()
        for other in imported(FILES[name])
        if other in FILES and other != "phaseflip"
        if other in FACES or ORDER.index(package_of(other)) > ORDER.index(package_of(name))
    }
    assert upwards == UPWARDS


@pytest.mark.parametrize("on_load", [True, False], ids=["on loading", "in all"])
def test_modules_import_one_another_in_no_circle(on_load: bool) -> None:
    def counts(name: str, other: str) -> bool:
        tied = any(name.startswith(knot) and other.startswith(knot) for knot in KNOTS)
        return other in FILES and (on_load or not tied and (name, package_of(other)) not in UPWARDS)

    graph = {
        name: {other for other in imported(FILES[name], on_load) if counts(name, other)}
        for name in in_layers()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_folder_is_crowded() -> None:
    modules = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {f.name: n for f, n in modules.items() if n > MAX_MODULES} == {}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_module_keeps_the_house_rules(path: Path) -> None:
    name, tree = dotted(path), parsed(path)
    assert len(path.read_text().splitlines()) <= MAX_LINES, f"split it before it passes {MAX_LINES}"
    assert ast.get_docstring(tree), f"{name} has no docstring"
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
    prints = [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert prints == [], f"{name} prints in lines {prints}; commands write by system.output"


@pytest.mark.parametrize("on_load", [True, False], ids=["on loading", "in all"])
def test_few_modules_import_the_compiler(on_load: bool) -> None:
    others = {name for name in FILES if not name.startswith(MAY_IMPORT_TVM)}
    users = {name for name in others if {"tvm", "tvm_ffi"} & imported(FILES[name], on_load)}
    assert users == (set() if on_load else IMPORT_TVM_IN_FUNCTIONS)


def run_python(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr


def test_what_knows_no_compiler_loads_none() -> None:
    below = ORDER[: ORDER.index("machine") + 1]
    names = [name for name in in_layers() if package_of(name) in below]
    names += ["phaseflip.run.schedule", "phaseflip.gemm.oracle"]
    assert len(names) > 70
    run_python(
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    found = [m for m in sys.modules if m.split('.')[0] in ('tvm', 'tvm_ffi')]\n"
        "    assert not found, f'{name} brought in {found[:3]}'\n"
    )


def test_import_phaseflip_loads_neither_numpy_nor_the_compiler() -> None:
    run_python(
        "import sys, phaseflip\n"
        "heavy = {'tvm', 'torch', 'numpy', 'hypothesis', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert phaseflip.BadInput.__name__ == 'BadInput'\n"
        "assert 'tvm' not in sys.modules\n"
    )


def test_every_name_that_phaseflip_promises_exists() -> None:
    import phaseflip

    for name in phaseflip.__all__:
        assert getattr(phaseflip, name) is not None
    assert set(phaseflip.__all__) <= set(dir(phaseflip))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = phaseflip.nonsense


def test_public_paths_stay() -> None:
    from phaseflip.gemm.verify import verify
    from phaseflip.pytest_plugin import pytest_addoption
    from phaseflip.verify import verify as face

    assert face is verify and callable(pytest_addoption)
