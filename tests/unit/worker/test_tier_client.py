import numpy as np
import torch

from pagoda.rpc.v1 import kv_store_pb2
from pagoda.worker.kv_transfer.digests import digest_blocks
from pagoda.worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda.worker.tier_client import _write

HASHES = [bytes([i]) * 16 for i in range(3)]


class Pool:
    """Takes what is written."""

    block_bytes = 32

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}

    def write_blocks(self, block_ids: list[int], blocks: torch.Tensor) -> None:
        for block_id, block in zip(block_ids, blocks, strict=True):
            self.written[block_id] = bytes(block.numpy())


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
    pool = Pool()
    blocks = ReservedBlocks(pool, [7, 8, 9], first_block=0)

    assert _write(blocks, 0, HASHES, answer(damaged=2)) == (2, True)
    assert sorted(pool.written) == [7, 8]


def test_a_sequence_that_ended_is_no_damage() -> None:
    pool = Pool()
    blocks = ReservedBlocks(pool, [7, 8, 9], first_block=0)
    blocks.close()

    assert _write(blocks, 0, HASHES, answer()) == (3, False)
    assert pool.written == {}
