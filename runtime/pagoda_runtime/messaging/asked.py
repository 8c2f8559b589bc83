"""A request that has been sent, and whose answer nobody has waited for yet."""

from typing import Generic, TypeVar

import nats.errors
from google.protobuf.message import Message

from pagoda_runtime.errors import NoResponderError, RemoteHandlerError, RequestTimeoutError
from pagoda_runtime.messaging.codec import ERROR_HEADER, decode
from pagoda_runtime.messaging.replies import Reply

R = TypeVar("R", bound=Message)


class Asked(Generic[R]):
    """Made by `Bus.ask`; whoever has it awaits `answer`, or calls `close`."""

    def __init__(
        self, subject: str, reply: Reply, response_type: type[R], timeout_seconds: float
    ) -> None:
        self._subject = subject
        self._reply = reply
        self._response_type = response_type
        self._timeout_seconds = timeout_seconds

    async def answer(self) -> R:
        """Return the answer; for what it raises see `Bus.request`."""
        try:
            message = await self._reply.message()
        except TimeoutError:
            raise RequestTimeoutError(self._subject, self._timeout_seconds) from None
        except nats.errors.NoRespondersError as error:
            raise NoResponderError(self._subject) from error
        if message.headers and ERROR_HEADER in message.headers:
            raise RemoteHandlerError(self._subject, message.headers[ERROR_HEADER])
        return decode(self._response_type, message)

    def close(self) -> None:
        """Wait no more for the answer."""
        self._reply.close()
