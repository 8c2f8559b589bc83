"""Fetches leading blocks from the host's kvstore into reserved blocks.

Every failure is a miss: what was not fetched is computed. Knows nothing of sequences.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import grpc
import grpc.aio
import numpy as np
import torch

from pagoda.rpc.v1 import kv_event_pb2, kv_store_pb2, kv_store_pb2_grpc
from pagoda_worker.kv_transfer.digests import ByteArray, digest_blocks
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Fetched:
    """What a fetch brought: consecutive blocks, and in which tier they were."""

    num_cpu_blocks: int = 0
    num_nvme_blocks: int = 0
    num_bytes: int = 0
    num_bad_digests: int = 0
    seconds: float = 0.0

    @property
    def num_blocks(self) -> int:
        """Blocks of all tiers."""
        return self.num_cpu_blocks + self.num_nvme_blocks


class TierClient:
    """Get of one kvstore."""

    def __init__(
        self, channel: grpc.aio.Channel, *, kv_identity: bytes, executor: Executor
    ) -> None:
        self._stub = kv_store_pb2_grpc.KvStoreServiceStub(channel)
        self._kv_identity = kv_identity
        self._executor = executor

    async def fetch(
        self,
        block_hashes: Sequence[bytes],
        blocks: ReservedBlocks,
        *,
        first_block: int,
        timeout_seconds: float,
    ) -> Fetched:
        """Write these hashes' blocks to logical blocks from `first_block` on, up to a miss."""
        fetched = Fetched()
        started = time.perf_counter()
        request = kv_store_pb2.GetRequest(
            kv_identity=self._kv_identity, block_hashes=b"".join(block_hashes)
        )
        call = self._stub.Get(request, timeout=timeout_seconds)
        try:
            async for response in call:
                done = fetched.num_blocks
                expected = block_hashes[done : done + len(response.blocks)]
                good, is_open = await asyncio.get_running_loop().run_in_executor(
                    self._executor, _write, blocks, first_block + done, expected, response.blocks
                )
                if not is_open:
                    break
                for block in response.blocks[:good]:
                    is_nvme = block.tier == kv_event_pb2.TIER_NVME
                    fetched.num_nvme_blocks += is_nvme
                    fetched.num_cpu_blocks += not is_nvme
                fetched.num_bytes += good * blocks.block_bytes
                if good < len(response.blocks):
                    fetched.num_bad_digests += 1
                    logger.warning("the kvstore sent a block that is not what was asked for")
                    break
        except grpc.aio.AioRpcError as error:
            logger.warning("kvstore: %s: %s", error.code().name, error.details())
        finally:
            call.cancel()
        fetched.seconds = time.perf_counter() - started
        return fetched


def _write(
    blocks: ReservedBlocks,
    first_block: int,
    expected: Sequence[bytes],
    messages: Sequence[kv_store_pb2.StoredBlock],
) -> tuple[int, bool]:
    """Verify and write one message's blocks.

    Returns how many leading ones were right, and False if the sequence has ended meanwhile, so that
    nothing was written.
    """
    payloads: ByteArray = np.empty((len(expected), blocks.block_bytes), dtype=np.uint8)
    count = 0
    for block_hash, message in zip(expected, messages, strict=False):
        if message.block_hash != block_hash or len(message.payload) != blocks.block_bytes:
            break
        payloads[count] = np.frombuffer(message.payload, dtype=np.uint8)
        if digest_blocks(payloads[count : count + 1]) != [message.digest]:
            break
        count += 1
    indices = range(first_block, first_block + count)
    return count, not count or blocks.write(indices, torch.from_numpy(payloads[:count]))
