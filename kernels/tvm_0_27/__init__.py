"""The kernels in the dialect of TVM 0.27: under that release each takes the place of the one of its name."""
