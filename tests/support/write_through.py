"""A write-through queue over a pool of made-up blocks, and a small KvStoreService for it."""

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import torch

from pagoda.rpc.v1 import kv_event_pb2, kv_store_pb2, kv_store_pb2_grpc
from pagoda_engine import StepResult
from pagoda_runtime.block_hash import split_hashes
from pagoda_worker.tiers.resident_blocks import ParentHashes, ResidentBlocks
from pagoda_worker.tiers.write_through import WriteThrough

BLOCK_BYTES = 2**18


class Store(kv_store_pb2_grpc.KvStoreServiceServicer):
    def __init__(self) -> None:
        self.messages: list[kv_store_pb2.PutRequest] = []
        self.held: set[bytes] = set()
        self.is_down = False
        self.on_match = lambda: None
        self.was_asked_twice = asyncio.Event()
        self.asked: list[int] = []  # hashes of each Match

    async def Put(self, request_iterator, context):
        count = 0
        if self.is_down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        async for message in request_iterator:
            self.messages.append(message)
            self.held.update(block.block_hash for block in message.blocks)
            count += len(message.blocks)
        return kv_store_pb2.PutResponse(num_stored=count)

    async def Match(self, request, context):
        hashes = split_hashes(request.block_hashes)
        self.asked.append(len(hashes))
        self.on_match()
        if len(self.asked) == 2:
            self.was_asked_twice.set()
        if self.is_down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        num_held = sum(1 for _ in itertools.takewhile(self.held.__contains__, hashes))
        return kv_store_pb2.MatchResponse(tiers=[kv_event_pb2.TIER_CPU] * num_held)

    @property
    def hashes(self) -> list[bytes]:
        return [block.block_hash for message in self.messages for block in message.blocks]


class Pool:
    block_bytes = BLOCK_BYTES

    def __init__(self) -> None:
        self.on_read = lambda: None

    def read_blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        self.on_read()
        rows = [torch.full((BLOCK_BYTES,), i % 256, dtype=torch.uint8) for i in block_ids]
        return torch.stack(rows)


class Harness:
    def __init__(self, channel, max_bytes: int, *, writes_all: bool = True) -> None:
        self.pool = Pool()
        self.resident = ResidentBlocks()
        self.parents = ParentHashes(1000)
        self.num_dropped = 0
        self.now = 0.0
        self.writer = WriteThrough(
            channel,
            kv_cache=self.pool,
            resident=self.resident,
            parents=self.parents,
            kv_identity=bytes(16),
            executor=ThreadPoolExecutor(1),
            max_bytes=max_bytes,
            writes_all=writes_all,
            on_dropped=self._on_dropped,
            clock=lambda: self.now,
        )

    def _on_dropped(self, count: int) -> None:
        self.num_dropped += count

    def store(self, *numbers: int, evicted: tuple[int, ...] = ()) -> None:
        stored = tuple((h(number), number) for number in numbers)
        self.resident.after_step(StepResult(stored=stored))
        self.writer.offer(stored, map(h, evicted))


def h(number: int) -> bytes:
    return number.to_bytes(16, "big")
