"""mistakes."""
