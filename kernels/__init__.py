"""GEMM kernels under test: one per file, each exporting ``KERNEL`` (a `phaseflip.Kernel`)."""
