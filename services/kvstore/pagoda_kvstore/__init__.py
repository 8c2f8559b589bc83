"""The KV block store of one host: CPU memory and NVMe tiers behind one gRPC service.

Owns bytes by block hash, their budgets and their eviction. Does not know what the bytes mean, who
asks for them, or where else they lie.
"""
