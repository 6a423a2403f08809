"""ordering."""
