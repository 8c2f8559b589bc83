"""Triton kernels of the gates."""
