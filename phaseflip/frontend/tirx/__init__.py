"""tirx."""
