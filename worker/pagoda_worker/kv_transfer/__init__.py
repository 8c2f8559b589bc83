"""KV blocks from the worker that computed them to the one that reserved room for them.

Knows leases, digests and three ways to travel: a pool of this host, NIXL, gRPC messages. Knows
nothing of what a sequence is for, or of when one is done.
"""
