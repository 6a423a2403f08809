"""Operands of matrix products in shared memory: where a matrix descriptor says that they lie."""
