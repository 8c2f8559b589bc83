"""The tiers behind the store: CPU memory, NVMe segments, the writer between them, pins."""
