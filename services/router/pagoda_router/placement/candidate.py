"""Plans that were compared, and what came of the comparison."""

from dataclasses import dataclass, field
from enum import Enum

from pagoda_router.workers.snapshot import WorkerSnapshot

# In an answer and in a span: enough to see why, and small beside the request.
MAX_CANDIDATES = 16


class RouteOutcome(Enum):
    """What became of a request."""

    PLACED = "placed"
    NO_WORKER = "no_worker"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """One sequence to place."""

    request_id: str
    sequence_index: int
    model: str
    kv_identity: bytes
    num_prompt_tokens: int
    max_tokens: int
    block_hashes: tuple[bytes, ...]
    excluded_worker_ids: frozenset[str] = frozenset()
    adapter: bytes = b""  # digest; empty: none


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading blocks of a prompt that one worker can reuse."""

    num_device_blocks: int = 0
    num_kvstore_blocks: int = 0  # on the device, or in the host's kvstore where that ends


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan: its predicted cost, or why it was ruled out."""

    decode_worker_id: str = ""
    prefill_worker_id: str = ""  # empty: the decode worker prefills
    num_fetch_blocks: int = 0
    num_device_blocks: int = 0
    num_miss_tokens: int = 0
    queue_ms: float = 0.0
    fetch_ms: float = 0.0
    compute_ms: float = 0.0
    transfer_ms: float = 0.0
    tpot_ms: float = 0.0
    held_up_ms: float = 0.0  # what sequences that run there wait for it, in sum
    cost_ms: float = 0.0
    reason: str = ""

    @property
    def ttft_ms(self) -> float:
        """Predicted time to the first token."""
        return self.queue_ms + self.fetch_ms + self.compute_ms + self.transfer_ms


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best plans, best first; the chosen one is the first if the outcome is PLACED."""

    outcome: RouteOutcome
    candidates: tuple[Candidate, ...]
    message: str = ""
    retry_after_seconds: float = 0.0
    decode: WorkerSnapshot | None = field(default=None, repr=False)
    prefill: WorkerSnapshot | None = field(default=None, repr=False)

    @property
    def chosen(self) -> Candidate | None:
        """The plan taken."""
        return self.candidates[0] if self.outcome is RouteOutcome.PLACED else None

    @property
    def margin_ms(self) -> float | None:
        """How much worse the runner-up is predicted to be; None if there is none."""
        if self.outcome is not RouteOutcome.PLACED or len(self.candidates) < 2:
            return None
        runner_up = self.candidates[1]
        return None if runner_up.reason else runner_up.cost_ms - self.candidates[0].cost_ms
