"""One family of generated kernels a file; each declares what can vary."""
