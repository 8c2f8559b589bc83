"""Triton kernels that write, copy and digest KV."""
