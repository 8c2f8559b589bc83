"""Errors of the workers. Every message says what, which value, which limit, what to do.

WorkerError
├── EngineLoopError          the step loop takes no command: stopped, failed, or its queue is full
├── EngineFailedError        a step raised; the process must restart
├── RequestFormatError       a message that contradicts itself
├── LeaseError               a push that this consumer does not accept
│   ├── LeaseVoidError           unknown, expired, cancelled, used already, or of another epoch
│   └── LeaseMismatchError       blocks that the lease does not cover, or another KV identity
├── AdapterRefusedError      an adapter that cannot be loaded or unloaded here
└── PushError                the producer could not deliver its blocks
"""


class WorkerError(Exception):
    """Root of the workers' errors."""


class EngineLoopError(WorkerError):
    """The step loop takes no command."""


class EngineFailedError(WorkerError):
    """A step raised, so the engine's state cannot be trusted any more."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            f"an engine step raised {type(cause).__name__}: {cause}; all its sequences failed and "
            "the process exits so that its supervisor starts it afresh"
        )


class RequestFormatError(WorkerError):
    """A message contradicts itself or this worker's limits; retrying it here is useless."""


class LeaseError(WorkerError):
    """A push is not accepted."""


class LeaseVoidError(LeaseError):
    """The lease does not exist here any more, so its blocks may belong to somebody else."""

    def __init__(self, lease_id: str, reason: str) -> None:
        self.lease_id = lease_id
        super().__init__(f"lease {lease_id} is void ({reason}): stop pushing")


class LeaseMismatchError(LeaseError):
    """The push does not fit the lease."""


class AdapterRefusedError(WorkerError):
    """An adapter cannot be loaded or unloaded; the message says why and what to do."""


class PushError(WorkerError):
    """The consumer did not take the blocks."""

    def __init__(self, lease_id: str, endpoint: str, reason: str) -> None:
        self.lease_id, self.endpoint = lease_id, endpoint
        super().__init__(f"push of lease {lease_id} to {endpoint} failed: {reason}")
