"""KV blocks of one engine: the tensor that holds them and who owns which."""

from pagoda.engine.cache.block_pool import BlockPool
from pagoda.engine.cache.kv_cache import KvCache, KvLayout

__all__ = ["BlockPool", "KvCache", "KvLayout"]
