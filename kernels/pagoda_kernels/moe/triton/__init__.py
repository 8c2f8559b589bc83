"""Triton kernels of the mixture of experts."""
