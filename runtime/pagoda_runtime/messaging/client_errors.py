"""The errors of the NATS client, translated into ours, which is all that callers of the bus see."""

import contextlib
from collections.abc import Iterator

import nats.errors

from pagoda_runtime.errors import (
    BusDisconnectedError,
    BusError,
    MessageTooLargeError,
    NoResponderError,
)


@contextlib.contextmanager
def translated(subject: str, size_bytes: int = 0, max_bytes: int = 0) -> Iterator[None]:
    """Raise our error in place of the client's."""
    try:
        yield
    except nats.errors.Error as error:
        raise translation(error, subject, size_bytes, max_bytes) from error


def translation(
    error: nats.errors.Error, subject: str, size_bytes: int = 0, max_bytes: int = 0
) -> BusError:
    """Return our error for one of the client's."""
    match error:
        case nats.errors.MaxPayloadError():
            return MessageTooLargeError(subject, size_bytes, max_bytes)
        case nats.errors.NoRespondersError():
            return NoResponderError(subject)
        case nats.errors.OutboundBufferLimitError():
            return BusDisconnectedError(
                f"NATS is unreachable and the buffer of unsent messages is full: {subject} not sent"
            )
        case nats.errors.ConnectionClosedError() | nats.errors.ConnectionDrainingError():
            return BusDisconnectedError(f"the connection to NATS is closed: {subject} not sent")
        case _:
            return BusError(f"{subject}: {error}")
