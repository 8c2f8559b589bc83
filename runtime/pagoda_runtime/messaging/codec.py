"""Messages of the bus to and from bytes and headers."""

import math
from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from nats.aio.msg import Msg
from opentelemetry.context import Context

from pagoda_runtime.errors import MessageFormatError
from pagoda_runtime.telemetry.tracing import inject

ERROR_HEADER = "Pagoda-Error"
REMAINING_HEADER = "Pagoda-Remaining-Seconds"  # from sending on; then nobody waits for the answer

M = TypeVar("M", bound=Message)


def make_headers(
    context: Context | None, remaining_seconds: float | None = None
) -> dict[str, str] | None:
    """Return headers with the trace context (None: the current one) and what is left, if any."""
    headers: dict[str, str] = {}
    inject(headers, context)
    if remaining_seconds is not None:
        headers[REMAINING_HEADER] = f"{remaining_seconds:.3f}"
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


def remaining_seconds_of(message: Msg) -> float:
    """Return how long a request's answer was waited for when it was sent; inf: it does not say."""
    try:
        return float(message.headers[REMAINING_HEADER]) if message.headers else math.inf
    except (KeyError, ValueError):
        return math.inf


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
