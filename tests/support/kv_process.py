"""A KV producer or consumer in a process of its own, doing what a test tells it line by line."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc.aio
import torch

from pagoda.rpc.v1 import kv_transfer_pb2_grpc
from pagoda_engine import KvCache
from pagoda_engine.cache.copy_lanes import CopyLanes
from pagoda_engine.cache.peer_pool import PoolExport, exportable_cache
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.rpc_server import grpc_server
from pagoda_worker.errors import PushError
from pagoda_worker.kv_transfer.base import LeaseTarget, PushTrailer
from pagoda_worker.kv_transfer.consumer import KvConsumer
from pagoda_worker.kv_transfer.grpc_producer import GrpcProducer, GrpcPush
from pagoda_worker.kv_transfer.leases import Lease, LeaseTable
from pagoda_worker.kv_transfer.nixl_pool import NixlExport
from pagoda_worker.kv_transfer.pool_codec import DigestKind
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from support.kv_pools import CPU, LAYOUT, fill

EPOCH = "epoch-1"
IDENTITY = bytes(16)
SECONDS = 60.0
SOURCE_IDS = [4, 2, 0, 1]
TARGET_IDS = [1, 3, 0, 2]
LANES = CopyLanes(CPU, staging_bytes=2 * LAYOUT.block_bytes)


class Producer:
    """Blocks `SOURCE_IDS` of a shared pool, pushed as logical blocks 0 to 3.

    `as_gpu`: with the lanes and the digest of a GPU. `by_nixl`: instead of shared memory.
    """

    def __init__(self, *, as_gpu: bool = False, by_nixl: bool = False) -> None:
        self.cache = fill(exportable_cache(LAYOUT, 5, CPU))
        self.cache.lanes = LANES if as_gpu else None
        self.export = NixlExport(self.cache) if by_nixl else PoolExport(self.cache)
        self.damaged: int | None = None
        owner = self

        class DamagingProducer(GrpcProducer):
            def encode(self, part, is_inline):
                message = super().encode(part, is_inline)
                if owner.damaged is not None:  # its digest was taken
                    owner.cache.tensor[:, :, owner.damaged].view(torch.uint8)[0, 0, 0, 0, 0] ^= 1
                return message

        self.producer = DamagingProducer(
            self.cache,
            kv_identity=IDENTITY,
            open_channel=lambda endpoint: grpc_channel(endpoint, token=""),
            executor=ThreadPoolExecutor(2),
            pool=self.export,
        )
        if as_gpu:
            self.producer.digest = DigestKind.MULTILINEAR
        self.pushing: GrpcPush | None = None

    async def push(self, lease_id: str, endpoint: str, epoch: str = EPOCH) -> None:
        target = LeaseTarget(lease_id, epoch, endpoint)
        self.pushing = self.producer.push(target, timeout_seconds=SECONDS)

    async def send(self, first: int, end: int, layers: list[int] | None = None) -> None:
        part = None if layers is None else range(*layers)
        await self.pushing.send(first, SOURCE_IDS[first:end], layers=part)

    async def finish(self) -> dict[str, Any]:
        summary = await self.pushing.finish(PushTrailer(16, 7, False))
        return {"num_blocks": summary.num_blocks, "bad_blocks": summary.bad_blocks}

    async def damage(self, block_id: int) -> None:
        self.damaged = block_id

    async def close(self) -> None:
        if self.pushing is not None:
            await self.pushing.close()
        await self.producer.close()


class WatchedLeases(LeaseTable):
    """Tells of progress."""

    def __init__(self) -> None:
        super().__init__(EPOCH, lease_seconds=600, clock=time.monotonic)
        self.progressed = asyncio.Event()

    def renew(self, lease: Lease) -> None:
        super().renew(lease)
        self.progressed.set()


class Consumer:
    """Blocks `TARGET_IDS` of a pool, promised to a producer; served on `endpoint`."""

    def __init__(self, *, as_gpu: bool = False) -> None:
        self.cache = KvCache(LAYOUT, 4, CPU, lanes=LANES if as_gpu else None)
        self.leases = WatchedLeases()
        self.bad_blocks: list[int] = []
        self.consumer = KvConsumer(
            self.leases,
            kv_cache=self.cache,
            kv_identity=IDENTITY,
            executor=ThreadPoolExecutor(2),
            on_bad_blocks=self.bad_blocks.append,
        )
        self.endpoint = ""

    @contextlib.asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator["Consumer"]:
        def add(server: grpc.aio.Server) -> None:
            kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(self.consumer, server)

        async with grpc_server(host="127.0.0.1", port=port, token="", add=add) as port:
            self.endpoint = f"127.0.0.1:{port}"
            yield self
        self.consumer.close()

    def promise(self, lease_id: str = "lease-1") -> Lease:
        blocks = ReservedBlocks(self.cache, TARGET_IDS, first_block=0)
        return self.leases.open(lease_id, sequence_id="s", producer_id="prefill-1", blocks=blocks)

    async def received(self, lease: Lease, num_bytes: int) -> None:
        """Wait until so much of a lease has come and was written."""
        async with asyncio.timeout(SECONDS):
            while lease.num_received_bytes < num_bytes:
                self.leases.progressed.clear()
                await self.leases.progressed.wait()

    def lose_producer(self) -> None:
        self.leases.lose_producer("prefill-1")
        self.consumer.on_worker("prefill-1", None)

    def num_equal(self, source: KvCache) -> int:
        """How many leading blocks are the source's."""
        pairs = zip(TARGET_IDS, SOURCE_IDS, strict=True)
        for count, (ours, theirs) in enumerate(pairs):
            if not torch.equal(self.cache.tensor[:, :, ours], source.tensor[:, :, theirs]):
                return count
        return len(TARGET_IDS)


class Remote:
    """The test's side of a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def run(cls, role: str) -> AsyncIterator["Remote"]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "support.kv_process",
            role,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def do(self, name: str, **arguments: Any) -> Any:
        """Have it done and return the result; PushError if it says so."""
        self.process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            line = await self.process.stdout.readline()
        answer = json.loads(line)
        if "error" in answer:
            raise PushError("", "", answer["error"])
        return answer["result"]

    async def kill(self) -> None:
        self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL


async def _obey(commands: dict[str, Any]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, arguments = json.loads(line)
        try:
            answer = {"result": await commands[name](**arguments)}
        except PushError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


async def _produce(*, by_nixl: bool = False) -> None:
    producer = Producer(by_nixl=by_nixl)

    async def handle() -> str:
        return producer.export.handle.memory.decode()

    async def nixl_handle() -> dict[str, Any]:
        handle = producer.export.handle
        fields = {name: getattr(handle, name) for name in handle.__slots__}
        return fields | {"kind": "", "memory": handle.memory.hex()}

    names = ("push", "send", "finish", "damage", "close")
    await _obey(
        {name: getattr(producer, name) for name in names}
        | {"handle": handle, "nixl_handle": nixl_handle}
    )


async def _consume() -> None:
    consumer = Consumer()
    leases: list[Lease] = []

    async def promise() -> str:
        leases.append(consumer.promise())
        return consumer.endpoint

    async def received(num_bytes: int) -> None:
        await consumer.received(leases[-1], num_bytes)

    async with consumer.served():
        await _obey({"promise": promise, "received": received})


if __name__ == "__main__":
    roles = {
        "producer": _produce,
        "nixl-producer": functools.partial(_produce, by_nixl=True),
        "consumer": _consume,
    }
    asyncio.run(roles[sys.argv[1]]())
