"""Copies finished blocks to the host's kvstore, in the background and within a byte budget.

At once only those that are used again, unless all are asked for: most prompts come once, and copies
cost tokens. On a CPU they take the engine's processors; beside a GPU they take the interpreter from
the thread that launches kernels (ADR 63). The others wait for a moment in which no worker of the
machine computes. A block that cannot be written in time is dropped and counted: it is only a later
miss. What the kvstore has lost since is written again once it is used or computed again.
"""

import asyncio
import collections
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

import grpc
import grpc.aio

from pagoda.rpc.v1 import kv_store_pb2, kv_store_pb2_grpc
from pagoda_worker.kv_transfer.base import MESSAGE_BYTES, ReadableBlocks
from pagoda_worker.kv_transfer.digests import ByteArray, digest_blocks
from pagoda_worker.tiers.known_blocks import MAX_REMEMBERED_HASHES, KnownBlocks, find_lost
from pagoda_worker.tiers.resident_blocks import ParentHashes, ResidentBlocks

logger = logging.getLogger(__name__)

MAX_MESSAGES_PER_PUT = 16
MAX_DOUBTED_BLOCKS = 16_384  # to be asked for at once: 256 KiB of hashes
PUT_SECONDS = 10.0

Block = tuple[bytes, int]  # hash, physical block
PutCall = grpc.aio.StreamUnaryCall[kv_store_pb2.PutRequest, kv_store_pb2.PutResponse]


class WriteThrough:
    """Put of one kvstore.

    Args:
        channel: to the kvstore.
        kv_cache: where blocks are read from.
        resident: tells whether a block still is what it was when it was queued.
        parents: of the blocks in their chains.
        kv_identity: 16 bytes.
        executor: threads for reading and digesting.
        max_bytes: KV of queued blocks at most (they stay in the pool meanwhile).
        writes_all: at once, used again or not.
        on_dropped: told how many blocks were not written.
        clock: seconds; tells how long ago the kvstore was known to have a block.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        kv_cache: ReadableBlocks,
        resident: ResidentBlocks,
        parents: ParentHashes,
        kv_identity: bytes,
        executor: Executor,
        max_bytes: int,
        writes_all: bool = True,
        on_dropped: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stub = kv_store_pb2_grpc.KvStoreServiceStub(channel)
        self._kv_cache = kv_cache
        self._resident = resident
        self._parents = parents
        self._kv_identity = kv_identity
        self._executor = executor
        self._max_blocks = max_bytes // kv_cache.block_bytes
        self._writes_all = writes_all
        self._on_dropped = on_dropped
        self._queue: collections.deque[Block] = collections.deque()
        self._later: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._known = KnownBlocks(clock)
        self._doubted: dict[bytes, tuple[int, bool]] = {}  # physical block, to be written at once
        self._writing: set[bytes] = set()
        self._written: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._has_blocks = asyncio.Event()
        self._blocks_per_message = max(1, MESSAGE_BYTES // kv_cache.block_bytes)

    @property
    def num_queued_blocks(self) -> int:
        """Blocks that wait."""
        return len(self._queue)

    def mark_known(self, block_hashes: Iterable[bytes]) -> None:
        """These need no writing: they came from the kvstore, or their producer writes them."""
        block_hashes = list(block_hashes)
        self._known.add(block_hashes)
        for block_hash in block_hashes:
            self._later.pop(block_hash, None)

    def offer(self, stored: Iterable[Block], evicted: Iterable[bytes] = ()) -> None:
        """Blocks became reusable: queue them, or remember them until they are used or all idle.

        `evicted`: hashes of blocks that were overwritten before.
        """
        for block_hash in evicted:
            self._later.pop(block_hash, None)
        unknown = self._unknown(stored, is_urgent=self._writes_all)
        if self._writes_all:
            self._enqueue(unknown)
        else:
            self._put_off(unknown)

    def note_reused(self, blocks: Iterable[Block]) -> None:
        """Blocks were used again: queue those that the kvstore has not."""
        here = (block for block in blocks if self._resident.holds(*block))
        self._enqueue(self._unknown(here, is_urgent=True))

    def on_idle(self) -> None:
        """Nothing is computed here: queue some of those that wait, the latest first."""
        free = self._max_blocks - len(self._queue)
        self._enqueue([self._later.popitem() for _ in range(min(free, len(self._later)))])

    def keep(self, blocks: Sequence[Block]) -> None:
        """Blocks may be gone soon and are wanted back: queue those that nobody wrote from here.

        Also those that another worker was to write: nobody knows whether it has.
        """
        missing = [b for b in blocks if b[0] not in self._written and b[0] not in self._writing]
        self._known.forget(block_hash for block_hash, _ in missing)
        self._enqueue(missing)
        self._unknown((b for b in blocks if b[0] in self._written), is_urgent=True)

    def note_fetched(self, block_hashes: Sequence[bytes], num_fetched: int) -> None:
        """The kvstore had so many leading ones of these, and not the next one."""
        self.mark_known(block_hashes[:num_fetched])
        self._note_written(block_hashes[:num_fetched])
        missed = block_hashes[num_fetched:]
        for block_hash in missed:
            self._written.pop(block_hash, None)
        self._known.forget(missed[:1])
        self._known.doubt(missed[1:])  # a fetch ends at the first miss

    def match(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many leading ones the kvstore has, as far as is known. From any thread."""
        return sum(1 for _ in itertools.takewhile(self._written.__contains__, block_hashes))

    def _note_written(self, block_hashes: Iterable[bytes]) -> None:
        for block_hash in block_hashes:
            self._written[block_hash] = None
            self._written.move_to_end(block_hash)
        while len(self._written) > MAX_REMEMBERED_HASHES:
            self._written.popitem(last=False)

    def _unknown(self, blocks: Iterable[Block], *, is_urgent: bool) -> list[Block]:
        """Return those that the kvstore has not; have it asked for those that it may have lost."""
        unknown = []
        for block_hash, block_id in blocks:
            if block_hash not in self._known:
                unknown.append((block_hash, block_id))
            elif self._known.is_doubtful(block_hash) and len(self._doubted) < MAX_DOUBTED_BLOCKS:
                self._known.add([block_hash])  # not asked for twice
                self._doubted[block_hash] = block_id, is_urgent
        if self._doubted:
            self._has_blocks.set()
        return unknown

    def _put_off(self, blocks: Iterable[Block]) -> None:
        """Have blocks wait until they are used again or all idle."""
        for block_hash, block_id in blocks:
            self._later[block_hash] = block_id
            self._later.move_to_end(block_hash)
        while len(self._later) > MAX_REMEMBERED_HASHES:
            self._later.popitem(last=False)

    def _enqueue(self, stored: Iterable[Block]) -> None:
        """Queue blocks as far as they are new and the budget allows."""
        num_dropped = 0
        for block_hash, block_id in stored:
            if block_hash in self._known:
                continue
            if len(self._queue) >= self._max_blocks:
                num_dropped += 1
                continue
            self.mark_known([block_hash])
            self._writing.add(block_hash)
            self._queue.append((block_hash, block_id))
        if num_dropped:
            self._on_dropped(num_dropped)
        if self._queue:
            self._has_blocks.set()

    async def run(self) -> None:
        """Write what is queued, until cancelled."""
        while True:
            await self._has_blocks.wait()
            await self.write_queued()

    async def write_queued(self) -> None:
        """Ask for what is in doubt, then write at most 16 messages' worth of what is queued."""
        if self._doubted:
            await self._ask()
        limit = self._blocks_per_message * MAX_MESSAGES_PER_PUT
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        if not self._queue and not self._doubted:
            self._has_blocks.clear()
        if not taken:
            return
        call = self._stub.Put(timeout=PUT_SECONDS)
        try:
            with contextlib.suppress(asyncio.InvalidStateError):  # the call has ended; it says why
                if not await self._send(call, taken):
                    return
            response = await call
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            logger.warning("%d blocks were not written to the kvstore: %s", len(taken), reason)
            self._known.add(h for h, _ in taken)  # not read again for it before it answers
            self._on_dropped(len(taken))
        except Exception:  # whatever it was, later blocks are to be written
            logger.exception("%d blocks were not written to the kvstore", len(taken))
            self._forget(taken)
        else:
            if response.num_refused:  # it does not say which
                self._on_dropped(response.num_refused)
            else:
                self._note_written(h for h, _ in taken if h in self._writing)
        finally:
            self._writing.difference_update(block_hash for block_hash, _ in taken)
            call.cancel()

    async def _ask(self) -> None:
        """Have what the kvstore has lost written as if it had never been there."""
        doubted, self._doubted = self._doubted, {}
        try:
            lost = await find_lost(self._stub, self._kv_identity, list(doubted))
        except Exception:  # whatever it was, blocks are to be written
            logger.exception("the kvstore could not be asked for %d blocks", len(doubted))
            return
        lost -= self._writing  # queued meanwhile
        self._known.forget(lost)
        urgent: list[Block] = []
        others: list[Block] = []
        for block_hash, (block_id, is_urgent) in doubted.items():
            if block_hash in lost:
                self._written.pop(block_hash, None)
                if self._resident.holds(block_hash, block_id):
                    (urgent if is_urgent else others).append((block_hash, block_id))
        self._enqueue(urgent)
        self._put_off(others)

    async def _send(self, call: PutCall, blocks: Sequence[Block]) -> bool:
        """Return whether something was left of the blocks to be written."""
        # Not by an iterator: gRPC would answer an exception of ours by cancelling whoever waits.
        event_loop = asyncio.get_running_loop()
        is_written = False
        for start in range(0, len(blocks), self._blocks_per_message):
            part = blocks[start : start + self._blocks_per_message]
            message, lost = await event_loop.run_in_executor(self._executor, self._encode, part)
            self._forget(lost)
            if message.blocks:
                await call.write(message)
                is_written = True
        if is_written:
            await call.done_writing()
        return is_written

    def _encode(self, blocks: Sequence[Block]) -> tuple[kv_store_pb2.PutRequest, list[Block]]:
        """Read and digest blocks. Returns the message and what was overwritten meanwhile."""
        payloads: ByteArray = self._kv_cache.read_blocks(
            [block_id for _, block_id in blocks]
        ).numpy()
        is_here = [self._resident.holds(*block) for block in blocks]  # after reading, not before
        message = kv_store_pb2.PutRequest(kv_identity=self._kv_identity)
        parents = self._parents.get_all(block_hash for block_hash, _ in blocks)
        rows = zip(blocks, parents, digest_blocks(payloads), payloads, is_here, strict=True)
        for (block_hash, _), parent, digest, payload, is_valid in rows:
            if is_valid:
                message.blocks.add(
                    block_hash=block_hash,
                    parent_hash=parent,
                    digest=digest,
                    payload=payload.tobytes(),
                )
        return message, [b for b, is_valid in zip(blocks, is_here, strict=True) if not is_valid]

    def _forget(self, blocks: Sequence[Block]) -> None:
        self._known.forget(block_hash for block_hash, _ in blocks)
        for block_hash, _ in blocks:
            self._writing.discard(block_hash)
        if blocks:
            self._on_dropped(len(blocks))
