"""Kernels that were once judged wrongly, after public bug reports, each beside its correct twin, and what is right for them."""
