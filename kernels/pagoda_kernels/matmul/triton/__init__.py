"""Triton kernels of the quantised matmuls, and the tiles, splits and row groups of any matmul."""
