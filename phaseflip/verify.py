"""The public path of `verify`; it lives in `gemm`."""

from .gemm.verify import verify as verify
