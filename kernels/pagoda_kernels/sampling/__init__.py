"""Penalties and sampling of tokens from logits, the same token for the same (seed, index).

Owns the random numbers. Knows nothing of requests, grammars or text.
"""
