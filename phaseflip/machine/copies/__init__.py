"""copies."""
