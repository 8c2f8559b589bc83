"""Leases: the consumer's promises to keep reserved blocks for a producer, for a while.

A lease is settled exactly once: its blocks arrived, or the push broke, it expired, the producer
vanished, or the sequence ended. Settling closes the blocks, so a late push can never write into
them. Runs on the event loop; knows nothing of gRPC.
"""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from pagoda_worker.errors import LeaseVoidError
from pagoda_worker.kv_transfer.base import PushTrailer
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks


class LeaseOutcome(enum.Enum):
    """How a lease was settled."""

    RECEIVED = "received"  # trailer and all blocks; some may have had a bad digest
    BROKEN = "push broken"
    EXPIRED = "lease expired"
    GIVEN_UP = "producer gave up"
    PRODUCER_LOST = "producer lost"
    REFUSED = "producer refused"
    CANCELLED = "sequence ended"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a lease.

    Attributes:
        outcome: see LeaseOutcome.
        num_valid_blocks: leading logical blocks whose KV is right, shared ones included.
        result: what the producer's trailer said, with RECEIVED.
        reason: details for logs and spans.
    """

    outcome: LeaseOutcome
    num_valid_blocks: int
    result: PushTrailer | None = None
    reason: str = ""


@dataclass(slots=True, eq=False)
class Lease:
    """One promise. `settled` gets its end; everything else is read-only outside this module."""

    lease_id: str
    sequence_id: str
    producer_id: str
    blocks: ReservedBlocks
    expires_at: float
    settled: "asyncio.Future[Settlement]"
    is_pushing: bool = False
    bad_blocks: set[int] = field(default_factory=set)  # a digest did not match, so far
    num_received_bytes: int = 0
    started_unix_seconds: float = 0.0
    transport: str = ""  # by which the last message's blocks came


class LeaseTable:
    """All open leases of one consumer.

    Args:
        epoch: of this consumer; a push with another one is refused.
        lease_seconds: a lease expires this long after its last progress.
        clock: monotonic seconds.
    """

    def __init__(self, epoch: str, *, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._epoch = epoch
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def epoch(self) -> str:
        """Epoch of this consumer."""
        return self._epoch

    @property
    def lease_seconds(self) -> float:
        """How long a lease lives without progress."""
        return self._lease_seconds

    def open(
        self, lease_id: str, *, sequence_id: str, producer_id: str, blocks: ReservedBlocks
    ) -> Lease:
        """Promise blocks to a producer."""
        lease = Lease(
            lease_id=lease_id,
            sequence_id=sequence_id,
            producer_id=producer_id,
            blocks=blocks,
            expires_at=self._clock() + self._lease_seconds,
            settled=asyncio.get_running_loop().create_future(),
        )
        self._leases[lease_id] = lease
        return lease

    def begin_push(self, lease_id: str, epoch: str) -> Lease:
        """Return the lease that a push names.

        Raises:
            LeaseVoidError: it is not open, is pushed already, or the epoch is another one.
        """
        if epoch != self._epoch:
            raise LeaseVoidError(lease_id, f"its epoch {epoch!r} is not mine, {self._epoch!r}")
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseVoidError(lease_id, "unknown, expired, cancelled or used")
        if lease.is_pushing:
            raise LeaseVoidError(lease_id, "another push of it is running")
        lease.is_pushing = True
        self.renew(lease)
        return lease

    def renew(self, lease: Lease) -> None:
        """Count progress: the lease lives on."""
        lease.expires_at = self._clock() + self._lease_seconds

    def settle(
        self,
        lease: Lease,
        outcome: LeaseOutcome,
        *,
        result: PushTrailer | None = None,
        reason: str = "",
    ) -> None:
        """End a lease and fence its blocks. Only the first call counts."""
        if self._leases.pop(lease.lease_id, None) is None:
            return
        num_valid_blocks = lease.blocks.close()
        if not lease.settled.done():
            lease.settled.set_result(Settlement(outcome, num_valid_blocks, result, reason))

    def give_up(self, lease_id: str, epoch: str, reason: str) -> None:
        """The producer will not push. Unknown leases are ignored."""
        lease = self._leases.get(lease_id)
        if lease is not None and epoch == self._epoch and not lease.is_pushing:
            self.settle(lease, LeaseOutcome.GIVEN_UP, reason=reason)

    def lose_producer(self, producer_id: str) -> None:
        """A producer is gone or started anew: nothing will come of the leases it held."""
        for lease in tuple(self._leases.values()):
            if lease.producer_id == producer_id:
                self.settle(
                    lease, LeaseOutcome.PRODUCER_LOST, reason=f"worker {producer_id} is gone"
                )

    def sweep(self) -> None:
        """Settle what has expired."""
        now = self._clock()
        for lease in tuple(self._leases.values()):
            if now >= lease.expires_at:
                self.settle(
                    lease,
                    LeaseOutcome.EXPIRED,
                    reason=f"no progress within {self._lease_seconds:g} s",
                )
