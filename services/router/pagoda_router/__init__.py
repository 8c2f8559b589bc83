"""The router: where a sequence should run, by predicted cost.

Owns the registry of workers, the prefix index in Redis and the comparison of plans. Knows block
hashes, load and speeds; knows no text, no tensors and no gateway.
"""
