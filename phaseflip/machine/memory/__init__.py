"""Memory: load_store, unrolled (all passes of a loop at once), strong (with .acquire and the like), ldmatrix."""
