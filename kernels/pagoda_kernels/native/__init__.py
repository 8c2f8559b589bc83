"""Operators of a decoder in C for CPUs, called with raw pointers: no ABI of Python or torch."""
