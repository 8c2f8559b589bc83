"""The engine's exceptions.

    EngineError
    ├── CheckpointError            a model folder that cannot be read as one
    │   ├── UnsupportedModelError  a well-formed one whose architecture or option is not implemented
    │   └── AdapterError           an adapter's folder that is damaged, or that is not served here
    ├── NoAdapterSlotError         as many adapters as there is room for are loaded
    ├── InvalidConfigError         an EngineConfig that cannot work
    ├── MemoryBudgetError          the model, or the longest sequence, does not fit in the memory
    ├── InvalidSequenceError       a SequenceRequest (or a call about one) that can never be served
    │   └── AdapterNotLoadedError  its adapter is not here, maybe elsewhere
    ├── QueueFullError             too many sequences wait already; try again later
    ├── TokenMaskError             a grammar, or lists of tokens, that leave nothing to say
    ├── SequenceStateError         a call that does not fit what the sequence is doing
    └── BlockPoolError             blocks freed twice or never owned: a bug of the caller

Aborts, full pools and preemptions are no errors: they are values or nothing at all.
"""

from collections.abc import Sequence
from pathlib import Path


class EngineError(Exception):
    """Root of every error that the engine raises on purpose."""


class CheckpointError(EngineError):
    """A model folder is incomplete or contradicts itself."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class UnsupportedModelError(CheckpointError):
    """The model is well-formed, but asks for what the decoder does not implement."""

    def __init__(self, path: Path, what: str, value: object, supported: tuple[str, ...]) -> None:
        self.what = what
        self.value = value
        self.supported = supported
        super().__init__(
            path, f"{what} {value!r} is not supported; supported: {', '.join(supported)}"
        )


class AdapterError(CheckpointError):
    """An adapter is damaged, does not fit the model, or asks for what is not done here."""


class NoAdapterSlotError(EngineError):
    """Every slot holds an adapter that may be asked for, or that sequences still use."""

    def __init__(self, num_slots: int, num_leaving: int) -> None:
        self.num_slots = num_slots
        self.num_leaving = num_leaving
        later = f", {num_leaving} of which are free once their sequences have ended"
        super().__init__(
            f"all {num_slots} slots for adapters are taken{later if num_leaving else ''}; unload "
            "one, or raise max_adapters"
            if num_slots
            else "there is no room for adapters: max_adapters is 0"
        )


class InvalidConfigError(EngineError):
    """One limit of the configuration is out of range."""

    def __init__(self, what: str, value: object, limit: object) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        super().__init__(f"{what} is {value!r}, must be {limit}")


class MemoryBudgetError(EngineError):
    """Something does not fit; carries the arithmetic and what to change.

    The remedies have options in backticks, by their names in `EngineOptions`.
    """

    def __init__(self, reason: str, arithmetic: str, remedies: Sequence[str]) -> None:
        self.reason, self.arithmetic, self.remedies = reason, arithmetic, tuple(remedies)
        super().__init__(f"{reason}\n{arithmetic}\nWhat helps: {'; or '.join(remedies)}")


class InvalidSequenceError(EngineError):
    """The sequence can never be served as asked.

    Attributes:
        what: the field or quantity that is out of range.
        value: what was asked.
        limit: what is possible, in words or as a number.
    """

    def __init__(self, what: str, value: object, limit: object) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        super().__init__(f"{what} is {value!r}, must be {limit}")


class AdapterNotLoadedError(InvalidSequenceError):
    """The sequence names an adapter that no slot holds; another engine may have it."""

    def __init__(self, digest: bytes, loaded: frozenset[bytes]) -> None:
        known = ", ".join(sorted(each.hex() for each in loaded)) or "none is"
        super().__init__("adapter", digest.hex(), f"one that is loaded here: {known}")


class QueueFullError(EngineError):
    """As many sequences as allowed wait for admission."""

    def __init__(self, num_waiting: int, limit: int) -> None:
        self.num_waiting = num_waiting
        self.limit = limit
        super().__init__(
            f"{num_waiting} sequences wait and the limit is {limit}; retry later or raise "
            "max_num_waiting"
        )


class TokenMaskError(EngineError):
    """No next token is allowed, or a grammar is too complex from here on; ends its own sequence."""


class SequenceStateError(EngineError):
    """A call came for a sequence that is not in the state the call is for."""

    def __init__(self, sequence_id: str, state: str, wanted: str) -> None:
        self.sequence_id = sequence_id
        self.state = state
        self.wanted = wanted
        super().__init__(f"sequence {sequence_id!r} is {state}, not {wanted}")


class BlockPoolError(EngineError):
    """A block was freed that nobody holds."""

    def __init__(self, block_id: int, reason: str) -> None:
        self.block_id = block_id
        self.reason = reason
        super().__init__(f"block {block_id}: {reason}")
