"""What writes a generation down for one API. Owns the shape of answers, events and errors."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from pagoda_gateway import sse
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence


class Serializer(ABC):
    """Writes one generation, whole or as events."""

    @abstractmethod
    def parts(self) -> AsyncIterator[bytes]:
        """Yield the whole answer as JSON, once the generation is over.

        Between two parts others have their turn.
        """

    @abstractmethod
    def events(self, sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """Return what the client can see of something new."""

    def text_events(self, sequence: OutputSequence, text: str) -> list[bytes]:
        """Return what the client can see of new text, where nothing else is new."""
        return self.events(sequence, Delta(text=text))

    @abstractmethod
    async def end_events(self, receipt: dict[str, Any] | None) -> list[bytes]:
        """Return what ends a good stream; with the request's receipt if it is wanted."""

    @abstractmethod
    def failure_events(self, error: GatewayError) -> list[bytes]:
        """Return what ends a stream that has begun and failed."""

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the whole answer of a generation that failed before it had any."""
        return error.body()

    def keepalive(self, stage: str) -> bytes:
        """Return what a stream that waits in `stage` sends so that its connection lives."""
        return sse.comment(f"keep-alive {stage}")


def whole_output(sequence: OutputSequence) -> Delta:
    """Return all of a sequence that is over."""
    return sequence.read() or Delta(finish_reason=sequence.finish_reason)
