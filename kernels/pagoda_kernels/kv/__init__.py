"""What writes, copies and digests KV: new tokens into slots, whole blocks between pools.

Owns the one-byte encodings of KV and the digest of a block. Knows nothing of attention or networks.
"""
