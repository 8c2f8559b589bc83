"""The tiers behind the store: CPU memory, NVMe segments, the writer between them.

Owns where a block lies and when it goes. Knows no network and no model.
"""
