"""The TVM release that this package reads, checked before anything of TVM's is used."""

from __future__ import annotations

import importlib.metadata

from phaseflip.errors import BadInput

RELEASES = {"0.26": "0.26.0", "0.27": "0.27.0.post1"}
"""Release series of apache-tvm whose dialect is decoded -> the release of it that is tested."""

INSTALL = f"run `pip install apache-tvm=={RELEASES['0.26']} apache-tvm-ffi==0.1.15.post2`"

_READS = (
    f"phaseflip reads the IR of apache-tvm {' and '.join(f'{series}.x' for series in RELEASES)}"
)


def check_tvm_version() -> None:
    """BadInput unless the installed TVM is one whose IR this release understands.

    Here rather than in `lowering`: kernel files, `tir` and `instructions` use names of that release
    as they are imported, and would fail on another one with an error that says nothing.
    """
    try:
        import tvm
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip()
        raise BadInput(
            f"{_READS}, and none can be imported ({type(error).__name__}: {reason}); {INSTALL}"
        ) from error
    version = getattr(tvm, "__version__", "of unknown version")
    if _series(version) not in RELEASES:
        raise BadInput(f"{_READS}, but apache-tvm {version} is installed; {INSTALL}")


def installed_series() -> str:
    """The series of the installed apache-tvm, "0.26" or "0.27", without importing it; the first one where none is."""
    try:
        series = _series(importlib.metadata.version("apache-tvm"))
    except importlib.metadata.PackageNotFoundError:
        series = ""
    return series if series in RELEASES else next(iter(RELEASES))


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])
