"""The kvstore below one worker: what is fetched as the router planned, what is written through.

Without a kvstore nothing is fetched and nothing written. Knows sequences' stages, since a fetch is
one. Knows nothing of roles.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

import grpc.aio

from pagoda_engine import Preemption
from pagoda_runtime.telemetry.tracing import attached
from pagoda_worker.heartbeat.speed_model import Rate
from pagoda_worker.kv_transfer.base import ReadableBlocks
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.sequences import LiveSequence
from pagoda_worker.served_model import ServedModel
from pagoda_worker.telemetry.metrics import WorkerMetrics
from pagoda_worker.tiers.client import Fetched, TierClient
from pagoda_worker.tiers.resident_blocks import ParentHashes, ResidentBlocks
from pagoda_worker.tiers.write_through import WriteThrough

MAX_FETCH_SECONDS = 10.0


class LowerTiers:
    """Both directions of one worker.

    Args:
        kvstore: None: there are no lower tiers.
        model: whose KV it is.
        kv_cache: blocks are read from it.
        resident: what lies in it.
        parents: of blocks in their chains.
        executor: threads that copy and digest.
        max_bytes: KV of blocks that wait to be written at most; 0: none is written.
        writes_all: see `WriteThrough`.
        fetch_rate: learns how fast fetches are.
        metrics: count them.
        clock: unix seconds.
    """

    def __init__(
        self,
        kvstore: grpc.aio.Channel | None,
        *,
        model: ServedModel,
        kv_cache: ReadableBlocks,
        resident: ResidentBlocks,
        parents: ParentHashes,
        executor: Executor,
        max_bytes: int,
        writes_all: bool,
        fetch_rate: Rate,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._client = self._write_through = None
        if kvstore is not None:
            self._client = TierClient(kvstore, kv_identity=model.kv_identity, executor=executor)
            if max_bytes:
                self._write_through = WriteThrough(
                    kvstore,
                    kv_cache=kv_cache,
                    resident=resident,
                    parents=parents,
                    kv_identity=model.kv_identity,
                    executor=executor,
                    max_bytes=max_bytes,
                    writes_all=writes_all,
                    on_dropped=metrics.write_through_dropped.inc,
                )
        self._block_size = model.block_size
        self._fetch_rate = fetch_rate
        self._metrics = metrics
        self._clock = clock

    @property
    def can_fetch(self) -> bool:
        """Whether there is a kvstore."""
        return self._client is not None

    async def fetch_planned(self, sequence: LiveSequence, blocks: ReservedBlocks) -> int:
        """Fetch into a reserved sequence's blocks. Returns the leading tokens whose KV is valid.

        Marks the kv.fetch stage's begin and end, also when there is nothing to fetch.
        """
        stages = sequence.stages
        stages.fetch_started = self._clock()
        first, end = blocks.first_block, sequence.plan_num_fetch_blocks
        if end > first:
            hashes = sequence.request.block_hashes[first:end]
            fetched = await self.fetch(sequence, hashes, blocks)
            sequence.cached.cpu = fetched.num_cpu_blocks * self._block_size
            sequence.cached.nvme = fetched.num_nvme_blocks * self._block_size
        num_valid_blocks = blocks.close()
        stages.fetched = self._clock()
        return min(num_valid_blocks * self._block_size, sequence.num_known_tokens)

    async def fetch(
        self,
        sequence: LiveSequence,
        hashes: Sequence[bytes],
        blocks: ReservedBlocks,
        *,
        most_seconds: float = MAX_FETCH_SECONDS,
    ) -> Fetched:
        """Fetch these hashes' blocks into those of a sequence, from the first one on."""
        if self._client is None:
            return Fetched()
        with attached(sequence.context):
            fetched = await self._client.fetch(
                hashes,
                blocks,
                first_block=blocks.first_block,
                timeout_seconds=min(most_seconds, MAX_FETCH_SECONDS),
            )
        self._fetch_rate.add(fetched.num_bytes, fetched.seconds)
        self._metrics.fetched_blocks.labels("cpu").inc(fetched.num_cpu_blocks)
        self._metrics.fetched_blocks.labels("nvme").inc(fetched.num_nvme_blocks)
        self._metrics.bad_digests.labels("kvstore").inc(fetched.num_bad_digests)
        if self._write_through is not None:
            self._write_through.note_fetched(hashes, fetched.num_blocks)
        return fetched

    def match(self, block_hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks this worker has written or fetched. From any thread."""
        return 0 if self._write_through is None else self._write_through.match(block_hashes)

    def keep(self, preemption: Preemption) -> None:
        """Write what a sequence has lost, if it may get it back from here."""
        if self._write_through is not None and preemption.is_worth_keeping:
            self._write_through.keep(preemption.blocks)

    def mark_known(self, block_hashes: Sequence[bytes]) -> None:
        """Do not write these: the kvstore has them, or another worker writes them."""
        if self._write_through is not None:
            self._write_through.mark_known(block_hashes)

    def offer(self, stored: Iterable[tuple[bytes, int]], evicted: Iterable[bytes] = ()) -> None:
        """Write (block hash, block id) of blocks that became reusable; others are gone."""
        if self._write_through is not None:
            self._write_through.offer(stored, evicted)

    def note_reused(self, blocks: Iterable[tuple[bytes, int]]) -> None:
        """These (block hash, block id) were found on the device by another sequence."""
        if self._write_through is not None:
            self._write_through.note_reused(blocks)

    def on_idle(self) -> None:
        """No worker of this machine computes: a moment to write what nobody has used again."""
        if self._write_through is not None:
            self._write_through.on_idle()

    async def run(self) -> None:
        """Write what was offered, until cancelled."""
        if self._write_through is not None:
            await self._write_through.run()
