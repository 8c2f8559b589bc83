"""What a KV transport offers to a producer; `grpc_producer` implements it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagoda.rpc.v1 import generate_pb2

MESSAGE_BYTES = 2**20
"""Payload of one message: larger ones are slower, and hold the consumer's fence longer."""


class ReadableBlocks(Protocol):
    """The part of the engine's KvCache that reads whole blocks."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    def read_blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        """Return uint8 ``[N, block_bytes]``, cpu, contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseTarget:
    """Where a producer sends the blocks of one lease."""

    lease_id: str
    epoch: str  # of the consumer
    endpoint: str
    worker_id: str = ""  # of the consumer


@dataclass(frozen=True, slots=True)
class PushTrailer:
    """The prefill's result, as the consumer needs it."""

    num_computed_tokens: int
    first_token_id: int
    is_finished: bool
    finish_reason: "generate_pb2.FinishReason.ValueType" = generate_pb2.FINISH_REASON_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class PushSummary:
    """What became of a push."""

    num_blocks: int
    num_bytes: int
    bad_blocks: tuple[int, ...]
    seconds: float  # spent sending; waiting for the engine does not count


class KvPush(Protocol):
    """One lease's blocks on their way. Used by one task."""

    async def send(
        self,
        first_block: int,
        block_ids: Sequence[int],
        *,
        layers: range | None = None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        """Send consecutive logical blocks from `first_block` on; unchanged until `close`.

        Args:
            first_block: logical index of the first.
            block_ids: where they are in the producer's pool.
            layers: which of each block; None: all. A block is complete when all its layers came.
            wait: called in a thread before the blocks are read; returns when they are written.

        Raises:
            PushError: the consumer refused or is gone; nothing more can be sent.
        """
        ...

    async def finish(self, trailer: PushTrailer) -> PushSummary:
        """Send the result and wait until the consumer has verified every block.

        Raises:
            PushError: the consumer refused or is gone.
        """
        ...

    async def close(self) -> None:
        """End the push, whatever became of it; on return nothing of ours reads the blocks."""
        ...


class KvProducer(Protocol):
    """Sends blocks of one worker's pool to consumers."""

    def hear_of(self, epoch: str, host: str) -> None:
        """A consumer is alive; often called. `host` is its `host_id`, empty if unknown."""
        ...

    def push(self, target: LeaseTarget, *, timeout_seconds: float) -> KvPush:
        """Start a push; nothing is sent before the first block."""
        ...

    def lose(self, epoch: str) -> None:
        """A consumer is gone: let go of what was kept for it."""
        ...
