import tracemalloc

import numpy as np
import torch

from pagoda.rpc.v1 import kv_store_pb2
from pagoda_engine import KvCache, KvLayout
from pagoda_worker.kv_transfer.digests import digest_blocks
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.tiers.client import _write

HASHES = [bytes([i]) * 16 for i in range(3)]


LAYOUT = KvLayout(num_layers=1, block_size=2, num_kv_heads=1, head_dim=2, dtype=torch.float32)


def make_pool() -> KvCache:
    return KvCache(LAYOUT, 10, torch.device("cpu"))


def written(pool: KvCache) -> list[int]:
    return pool.read_blocks(range(10)).any(dim=1).nonzero().flatten().tolist()


def answer(damaged: int | None = None) -> list[kv_store_pb2.StoredBlock]:
    payloads = np.arange(3 * 32, dtype=np.uint8).reshape(3, 32)
    digests = digest_blocks(payloads)
    if damaged is not None:
        payloads[damaged, 5] ^= 1
    return [
        kv_store_pb2.StoredBlock(block_hash=h, digest=digest, payload=payload.tobytes())
        for h, digest, payload in zip(HASHES, digests, payloads, strict=True)
    ]


def test_blocks_before_a_damaged_one_are_written() -> None:
    pool = make_pool()
    blocks = ReservedBlocks(pool, [7, 8, 9], first_block=0)

    assert _write(blocks, 0, HASHES, answer(damaged=2)) == (2, True)
    assert written(pool) == [7, 8]


def test_more_blocks_than_were_asked_for_take_no_memory() -> None:
    pool = make_pool()
    blocks = ReservedBlocks(pool, [7, 8, 9], first_block=0)
    further = [kv_store_pb2.StoredBlock()] * 2**18
    tracemalloc.start()

    assert _write(blocks, 0, HASHES, [*answer(), *further]) == (3, True)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**18 * blocks.block_bytes
    assert written(pool) == [7, 8, 9]


def test_a_sequence_that_ended_is_no_damage() -> None:
    pool = make_pool()
    blocks = ReservedBlocks(pool, [7, 8, 9], first_block=0)
    blocks.close()

    assert _write(blocks, 0, HASHES, answer()) == (3, False)
    assert written(pool) == []
