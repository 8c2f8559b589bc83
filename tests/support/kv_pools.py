"""Small KV pools with known content, and what is left of shared ones."""

from pathlib import Path

import torch

from pagoda_engine import KvCache, KvLayout

CPU = torch.device("cpu")
LAYOUT = KvLayout(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)


def make_cache(num_blocks: int = 5) -> KvCache:
    return fill(KvCache(LAYOUT, num_blocks, CPU))


def fill(cache: KvCache, seed: int = 1) -> KvCache:
    generator = torch.Generator().manual_seed(seed)
    cache.tensor.copy_(torch.randn(cache.tensor.shape, generator=generator))
    return cache


def maps_of(handle: bytes, process: int | str = "self") -> list[str]:
    """Where a process has the shared memory of this handle mapped."""
    name = handle.decode().split("/")[-1]
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return [line for line in lines if f"memfd:{name}" in line]


def maps_of_peers() -> list[str]:
    """Where this process has pools of others mapped: only its own may it write."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "memfd:pagoda-kv-" in line and " r--s " in line]
