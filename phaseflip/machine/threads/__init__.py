"""Threads: converged groups, registers, divergence, what a warp does as one; setmaxnreg, launch control, hints."""
