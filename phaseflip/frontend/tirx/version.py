"""The TVM release that this package reads, checked before anything of TVM's is used."""

from __future__ import annotations

from phaseflip.errors import BadInput

SUPPORTED_TVM = "0.26"
"""The TVM release series whose intrinsics `decode_0_26` decodes."""

INSTALL = f"run `pip install apache-tvm=={SUPPORTED_TVM}.0 apache-tvm-ffi==0.1.15.post2`"


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
            f"apache-tvm {SUPPORTED_TVM}.x cannot be imported ({type(error).__name__}: {reason}); {INSTALL}"
        ) from error
    version = getattr(tvm, "__version__", "of unknown version")
    if not version.startswith(SUPPORTED_TVM + "."):
        raise BadInput(
            f"phaseflip reads the IR of apache-tvm {SUPPORTED_TVM}.x, but apache-tvm {version} is installed; {INSTALL}"
        )
