"""The sequences one worker holds: whose they are, how far they got, and when.

Book-keeping only; a role's own sequences add what only that role has. Runs on the event loop; knows
nothing of threads, blocks' bytes or messages on the wire.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import Link

from pagoda_engine import Limits, SequenceOutput, SequenceRequest
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks

LEAST_LEFT_SECONDS = 0.01
"""Who has less is not begun with anew; timers may be early by as much."""


@dataclass(slots=True)
class CachedTokens:
    """Prompt tokens whose KV was not computed, by where it came from."""

    device: int = 0
    cpu: int = 0
    nvme: int = 0


@dataclass(slots=True)
class Stages:
    """Unix seconds at which a sequence got somewhere on this worker; 0 = not (yet)."""

    accepted: float = 0.0
    reserved: float = 0.0
    fetch_started: float = 0.0
    fetched: float = 0.0  # also without any fetch: when computing could start
    first_token: float = 0.0  # this worker's engine sampled it
    transfer_started: float = 0.0
    transferred: float = 0.0
    joined: float = 0.0  # all KV is here and the first token is known
    ended: float = 0.0

    def cut_short(self, now: float) -> None:
        """End what its prompt is at: the sequence ends before its first token."""
        if not self.reserved:
            self.reserved = now
        elif self.fetch_started and not self.fetched:
            self.fetched = now
        elif self.fetched:
            self.first_token = now


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One sequence from its acceptance until its last output.

    Attributes:
        sequence_id: unique on this worker, attempt included.
        context: the trace context the gateway sent.
        deadline: by the worker's monotonic clock.
        plan_num_fetch_blocks: leading blocks the router wants fetched from the kvstore.
        cached: filled by the side that prefills.
        blocks: fence around blocks that are being written from outside, if any.
        task: what runs for this sequence and ends with it.
        is_ending: an abort is on its way to the engine.
        end_error: what the last frame says about an abort.
        next_index: output index of the next token that a gateway will get from anywhere.
        step_links: to the first traced steps that computed it.
        num_output_tokens: published from here; the last of them before `next_index`.
        compute_ns: of the engine, for this sequence.
        num_prefilled_tokens: computed here as prefill.
        num_proposed_tokens: verified here.
        num_accepted_tokens: of them, those that are output.
        chunk_limits: why chunks of its prompt had no more tokens, as `SequenceOutput` has it.
        resumed_limits: the same of those that were computed after its first token.
        proposal_limits: why proposals had no more.
        record_id: of its usage record, once it has one.
        num_recorded_tokens: published from here, as a record said that was made before its end.
        waited_for: what it lacked before it was let in, as `Reservation` has it.
        preempted: unix seconds at which it lost its blocks; 0: it has not, or has some again.
        preempted_because: why it did, the last time.
    """

    sequence_id: str
    request_id: str
    sequence_index: int
    attempt: int
    gateway_id: str
    context: Context
    deadline: float
    request: SequenceRequest
    plan_num_fetch_blocks: int = 0
    stages: Stages = field(default_factory=Stages)
    cached: CachedTokens = field(default_factory=CachedTokens)
    blocks: ReservedBlocks | None = None
    task: "asyncio.Task[None] | None" = None
    num_output_tokens: int = 0
    next_index: int = 0
    is_ending: bool = False
    end_error: str = ""
    step_links: list[Link] = field(default_factory=list)
    compute_ns: int = 0
    num_prefilled_tokens: int = 0
    num_proposed_tokens: int = 0
    num_accepted_tokens: int = 0
    chunk_limits: Limits = field(default_factory=dict)
    resumed_limits: Limits = field(default_factory=dict)
    proposal_limits: Limits = field(default_factory=dict)
    record_id: str = ""
    num_recorded_tokens: int = 0
    waited_for: tuple[str, ...] = ()
    preempted: float = 0.0
    preempted_because: str = ""

    def take_work(self, output: SequenceOutput | None) -> None:
        """Note what an output says was computed; None: the engine never had the sequence."""
        if output is not None:
            self.compute_ns = output.compute_ns
            self.num_prefilled_tokens = output.num_prefilled_tokens
            self.num_proposed_tokens = output.num_proposed_tokens
            self.num_accepted_tokens = output.num_accepted_tokens
            self.take_limits(output)

    def take_limits(self, output: SequenceOutput) -> None:
        """Note what an output says of chunks and proposals, if it says anything."""
        if output.limits is None:
            return
        chunks, self.proposal_limits = output.limits
        if not self.stages.joined:
            self.chunk_limits = chunks
            return
        before = self.chunk_limits
        more = {limit: number - before.get(limit, 0) for limit, number in chunks.items()}
        self.resumed_limits = {limit: number for limit, number in more.items() if number}

    @property
    def num_known_tokens(self) -> int:
        """Tokens to prefill: the prompt and what earlier attempts delivered."""
        return len(self.request.prompt_token_ids) + len(self.request.output_token_ids)

    def is_overdue(self, now: float) -> bool:
        """Whether nobody will wait for what is begun now, by the worker's monotonic clock."""
        return now >= self.deadline - LEAST_LEFT_SECONDS

    @property
    def is_waiting(self) -> bool:
        """Whether the engine has not admitted it yet."""
        return not self.stages.reserved


S = TypeVar("S", bound=LiveSequence)


def sequence_id_of(request_id: str, sequence_index: int, attempt: int) -> str:
    """Return the name under which an engine knows a sequence."""
    return f"{request_id}.{sequence_index}.{attempt}"


class SequenceTable(Generic[S]):
    """All live sequences by id. `empty` is set while there are none."""

    def __init__(self) -> None:
        self._by_id: dict[str, S] = {}
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[S]:
        return iter(tuple(self._by_id.values()))

    def get(self, sequence_id: str) -> S | None:
        """Return a live sequence, or None."""
        return self._by_id.get(sequence_id)

    def add(self, sequence: S) -> None:
        """Take in a sequence whose id is new."""
        assert sequence.sequence_id not in self._by_id
        self._by_id[sequence.sequence_id] = sequence
        self.empty.clear()

    def remove(self, sequence: S) -> None:
        """Forget a sequence. Idempotent."""
        self._by_id.pop(sequence.sequence_id, None)
        if not self._by_id:
            self.empty.set()

    @property
    def num_waiting(self) -> int:
        """Sequences that the engine has not admitted yet."""
        return sum(sequence.is_waiting for sequence in self._by_id.values())

    def num_waiting_of(self, tenant: bytes) -> int:
        """Return how many of a tenant's sequences the engine has not admitted yet."""
        return sum(s.is_waiting and s.request.tenant == tenant for s in self._by_id.values())

    def attempts(
        self, request_id: str, indices: Iterable[int] = (), attempt: int | None = None
    ) -> list[S]:
        """Return these sequences of a request; no indices = all.

        Args:
            request_id: of the request.
            indices: of its sequences.
            attempt: this one and all before it; None: every one.
        """
        wanted = frozenset(indices)
        return [
            sequence
            for sequence in self._by_id.values()
            if sequence.request_id == request_id
            and (not wanted or sequence.sequence_index in wanted)
            and (attempt is None or sequence.attempt <= attempt)
        ]

    def overdue(self, now: float) -> list[S]:
        """Return the sequences whose deadline has passed."""
        return [s for s in self._by_id.values() if now >= s.deadline and not s.is_ending]
