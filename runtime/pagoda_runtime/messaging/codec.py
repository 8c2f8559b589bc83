"""Messages of the bus to and from bytes and headers."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from nats.aio.msg import Msg
from opentelemetry.context import Context

from pagoda_runtime.errors import MessageFormatError
from pagoda_runtime.telemetry.tracing import inject

ERROR_HEADER = "Pagoda-Error"

M = TypeVar("M", bound=Message)


def make_headers(context: Context | None) -> dict[str, str] | None:
    """Return headers with the trace context (None: the current one), or None if there is none."""
    headers: dict[str, str] = {}
    inject(headers, context)
    return headers or None


def decode(message_type: type[M], message: Msg) -> M:
    """Return the payload as `message_type`.

    Raises:
        MessageFormatError: the bytes are not such a message.
    """
    try:
        return message_type.FromString(message.data)
    except DecodeError as error:
        raise MessageFormatError(
            f"{len(message.data)} bytes on {message.subject}: no {message_type.__name__}: {error}"
        ) from error


def kind_of(subject: str) -> str:
    """Return a subject without its ids, for metrics: pagoda.v1.status.decode.d1 -> status."""
    parts = subject.split(".")
    return parts[2] if len(parts) > 2 else parts[0]
