"""A worker as the router sees it: what it serves, its load and its speeds."""

import math
from dataclasses import dataclass, replace
from enum import Enum

from pagoda_router.workers.pending_load import PendingLoad


class WorkerRole(Enum):
    """What a process does."""

    PREFILL = "prefill"
    DECODE = "decode"
    KVSTORE = "kvstore"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Fitted by the worker from its own timings, priors where it has none."""

    prefill_tokens_per_second: float
    step_base_ms: float
    step_per_sequence_ms: float
    step_per_context_token_ms: float
    transfer_bytes_per_second: float
    fetch_bytes_per_second: float
    step_per_proposed_token_ms: float = 0.0
    proposed_per_decode: float = 0.0
    accepted_per_decode: float = 0.0
    prefill_age_seconds: float = 0.0  # of its speed at that; infinite: it is a prior


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One heartbeat, converted. A kvstore has no model and no load."""

    worker_id: str
    epoch: str
    role: WorkerRole
    is_ready: bool
    host_id: str
    model: str
    kv_identity: bytes
    block_size: int  # tokens
    block_bytes: int
    max_model_len: int  # tokens; 0 = not said
    num_waiting: int
    num_running: int
    num_waiting_tokens: int  # still to prefill
    num_blocks: int
    num_free_blocks: int
    num_context_tokens: int
    max_num_seqs: int  # 0 = not said
    max_num_waiting: int  # 0 = not said
    speeds: Speeds
    adapters: frozenset[bytes] = frozenset()  # digests
    num_assumed_waiting: int = 0  # of num_waiting: what it has not said itself
    kv_window: int = 0  # latest tokens whose blocks are held whole; 0: all of them
    part_behind_window: float = 1.0  # of a block before those
    shares_processors: bool = False  # with others of its host that say so

    @property
    def num_sequences(self) -> int:
        """Sequences waiting or running."""
        return self.num_waiting + self.num_running

    @property
    def is_queue_full(self) -> bool:
        """Whether it said itself that it refuses another sequence."""
        return 0 < self.max_num_waiting <= self.num_waiting - self.num_assumed_waiting

    @property
    def is_queue_full_by_now(self) -> bool:
        """Whether it would refuse another sequence if it had finished none since its heartbeat."""
        return 0 < self.max_num_waiting <= self.num_waiting

    def blocks_for(self, num_tokens: int, *, num_leading_blocks: int = 0) -> float:
        """Return what so many tokens' KV takes here less some leading blocks', in whole blocks.

        Of a block behind the window only the part is held that layers without one read.
        """
        num_blocks = math.ceil(num_tokens / self.block_size)
        num_behind = 0
        if self.kv_window:
            num_behind = num_blocks - math.ceil(self.kv_window / self.block_size) - 1
        num_partial = max(0, num_behind - num_leading_blocks)
        num_whole = max(0, num_blocks - num_leading_blocks - num_partial)
        return num_whole + num_partial * self.part_behind_window

    def plus(self, load: PendingLoad) -> "WorkerSnapshot":
        """Return this worker with load that it has not reported yet.

        New sequences take free places in the batch first and wait when there is none.
        """
        if not load.num_sequences:
            return self
        num_places = max(0, self.max_num_seqs - self.num_sequences)
        num_admitted = min(load.num_sequences, num_places)
        num_waiting = load.num_sequences - num_admitted
        return replace(
            self,
            num_running=self.num_running + num_admitted,
            num_waiting=self.num_waiting + num_waiting,
            num_assumed_waiting=num_waiting,
            num_waiting_tokens=self.num_waiting_tokens + load.num_prefill_tokens,
            num_context_tokens=self.num_context_tokens + load.num_context_tokens,
            num_free_blocks=max(0, self.num_free_blocks - load.num_blocks),
        )
