"""Triton kernels of the norms."""
