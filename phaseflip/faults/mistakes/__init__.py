"""Faults of the catalogue: mistakes that people have made and published, one file a group of kernels."""
