"""KV blocks of one engine: the tensor that holds them and who owns which."""

from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.cache.kv_cache import KvCache, KvLayout

__all__ = ["BlockPool", "KvCache", "KvLayout"]
