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
    except nats.errors.MaxPayloadError as error:
        raise MessageTooLargeError(subject, size_bytes, max_bytes) from error
    except nats.errors.NoRespondersError as error:
        raise NoResponderError(subject) from error
    except nats.errors.OutboundBufferLimitError as error:
        raise BusDisconnectedError(
            f"NATS is unreachable and the buffer of unsent messages is full: {subject} not sent"
        ) from error
    except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
        raise BusDisconnectedError(
            f"the connection to NATS is closed: {subject} not sent"
        ) from error
    except nats.errors.Error as error:
        raise BusError(f"{subject}: {error}") from error
