"""Triton kernels of penalties and sampling."""
