"""Copies: bulk_copy (of bytes), tma and tensor_map (of boxes of a tensor), cp_async (by threads)."""
