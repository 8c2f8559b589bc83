"""Messages of the bus to and from bytes and headers."""

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from nats.aio.msg import Msg
from opentelemetry.context import Context

from pagoda_runtime.errors import MessageFormatError
from pagoda_runtime.telemetry.tracing import inject

ERROR_HEADER = "Pagoda-Error"
DEADLINE_HEADER = "Pagoda-Deadline"  # Unix seconds: nobody waits for the answer after that

M = TypeVar("M", bound=Message)


def make_headers(
    context: Context | None, deadline_unix_seconds: float | None = None
) -> dict[str, str] | None:
    """Return headers with the trace context (None: the current one) and the deadline, if any."""
    headers: dict[str, str] = {}
    inject(headers, context)
    if deadline_unix_seconds is not None:
        headers[DEADLINE_HEADER] = f"{deadline_unix_seconds:.3f}"
    return headers or None


def header_block(headers: Mapping[str, str] | None) -> bytes:
    """Return headers as NATS has them before a payload; none: nothing.

    A value is one line, whatever a client has put into its trace context.
    """
    if not headers:
        return b""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if len(text.splitlines()) > len(headers):
        text = "".join([f"{k}: {' '.join(v.split())}\r\n" for k, v in headers.items()])
    return f"NATS/1.0\r\n{text}\r\n".encode()


def deadline_of(message: Msg) -> float | None:
    """Return the deadline of a request in Unix seconds; None if it has none that can be read."""
    try:
        return float(message.headers[DEADLINE_HEADER]) if message.headers else None
    except (KeyError, ValueError):
        return None


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
