"""A draft model beside the engine's own: its forwards, and KV of its own for the same tokens.

Knows sequences and tensors. Knows nothing of when a draft pays.
"""
