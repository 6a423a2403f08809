"""silicon."""
