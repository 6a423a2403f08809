"""`T` for kernels that both TVM releases parse: `tvm.script.tirx` with T.ptx spelled as TVM 0.26 does.

    from phaseflip.spelling import T

Under 0.26 it is TVM's own module. A kernel that is to run under 0.27 alone is better written in that dialect, with TVM's T.
"""

from __future__ import annotations

from typing import Any

from .frontend.tirx.version import installed_series


def _namespace() -> Any:
    if installed_series() == "0.27":
        from .frontend.tirx.v0_27.spelled_as_0_26 import SpelledAs026

        return SpelledAs026("phaseflip.spelling.T")
    from tvm.script import tirx

    return tirx


T: Any = _namespace()
