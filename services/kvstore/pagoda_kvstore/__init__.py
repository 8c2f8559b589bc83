"""KV block store of one host: CPU memory and NVMe tiers behind one gRPC service."""
