"""tcgen05."""
