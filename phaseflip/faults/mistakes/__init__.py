"""The catalogue: mistakes that people have made and published, one section a file. Files are found by themselves."""
