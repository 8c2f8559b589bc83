"""Matmuls with quantised weights: fp8, int8 and int4, and how checkpoints pack them.

Owns the weights' layouts and the quantisation of activations. Knows nothing of checkpoints' files.
"""
