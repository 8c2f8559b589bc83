"""Mixture of experts: which experts a token goes to, and their two matmuls.

Knows nothing of where experts lie among processes.
"""
