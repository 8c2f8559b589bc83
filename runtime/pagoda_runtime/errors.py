"""Errors of the runtime. Every message says what, which value, which limit, what to do.

RuntimeServiceError
├── SettingsError          unknown PAGODA_* names or values that cannot be used; lists all of them
├── ModelFolderError       no usable model folder
├── StartError             a port, folder or database that a process needs cannot be had
├── GrammarError           a grammar that cannot be compiled, or is too complex to go on with
├── BusError               NATS
│   ├── BusConnectError        no connection within the time allowed
│   ├── BusDisconnectedError   the connection is down and its buffer is full, or it was closed
│   ├── RequestTimeoutError    nobody answered in time
│   ├── NoResponderError       nobody listens on the subject
│   ├── RemoteHandlerError     the responder failed; its message is carried over
│   ├── MessageTooLargeError   larger than the server's limit
│   ├── MessageFormatError     bytes that are not the message expected
│   ├── MessageContentError    a message that its handler can never take, whenever it comes
│   └── StreamError            JetStream refused
└── RpcServerError         the gRPC server cannot be started
"""

import re
from collections.abc import Sequence


class RuntimeServiceError(Exception):
    """Root of the runtime's errors."""


class SettingsError(RuntimeServiceError):
    """Settings that cannot be used; `problems` has one line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) in the settings:\n{lines}")


class ModelFolderError(RuntimeServiceError):
    """No usable model folder."""


class StartError(RuntimeServiceError):
    """A port, folder or database that a process needs to start cannot be had."""

    def __init__(self, what: str, cause: str, remedy: str) -> None:
        super().__init__(f"{what} ({cause}): {remedy}")


class GrammarError(RuntimeServiceError):
    """A grammar that cannot be compiled or followed; the message is for who wrote it."""


class BusError(RuntimeServiceError):
    """Root of the errors of the message bus."""


class BusConnectError(BusError):
    """No connection to NATS within the time allowed."""

    def __init__(self, url: str, seconds: float, cause: str) -> None:
        self.url, self.seconds = url, seconds
        shown = re.sub("//[^/]*@", "//", url)  # it may have a password
        super().__init__(
            f"no connection to NATS at {shown} within {seconds:g} s ({cause}): "
            "check that it runs there, PAGODA_NATS_URL, PAGODA_NATS_USER and PAGODA_NATS_TOKEN"
        )


class BusDisconnectedError(BusError):
    """The connection is down and cannot take the message."""


class RequestTimeoutError(BusError):
    """Nobody answered a request in time."""

    def __init__(self, subject: str, seconds: float) -> None:
        self.subject, self.seconds = subject, seconds
        super().__init__(f"no answer on {subject} within {seconds:g} s")


class NoResponderError(BusError):
    """Nobody listens on a subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"nobody listens on {subject}")


class RemoteHandlerError(BusError):
    """The handler on the other side raised."""

    def __init__(self, subject: str, message: str) -> None:
        self.subject, self.message = subject, message
        super().__init__(f"the responder on {subject} failed: {message}")


class MessageTooLargeError(BusError):
    """A message is larger than the server takes."""

    def __init__(self, subject: str, size_bytes: int, max_bytes: int) -> None:
        self.subject, self.size_bytes, self.max_bytes = subject, size_bytes, max_bytes
        super().__init__(
            f"a message of {size_bytes} bytes for {subject} exceeds the server's limit of "
            f"{max_bytes} bytes: split it, or raise max_payload of the NATS server"
        )


class MessageFormatError(BusError):
    """Bytes that are not the message expected."""


class MessageContentError(BusError):
    """A message that its handler can never take, whenever it comes; says which and why."""


class StreamError(BusError):
    """JetStream refused or did not answer."""

    def __init__(self, stream: str, cause: str) -> None:
        self.stream = stream
        super().__init__(f"JetStream {stream}: {cause}")


class RpcServerError(RuntimeServiceError):
    """The gRPC server cannot be started."""
