"""What a worker asks of its role. Knows no role."""

from typing import Protocol, TypeVar

from pagoda_engine import ComputedBlocks, Reservation, Resumption, SequenceOutput
from pagoda_worker.sequences import LiveSequence

S_contra = TypeVar("S_contra", bound=LiveSequence, contravariant=True)


class SequenceHandler(Protocol[S_contra]):
    """What a role does with its sequences. Called on the event loop; must not block."""

    def on_reserved(self, sequence: S_contra, reservation: Reservation) -> None:
        """The engine admitted a sequence."""
        ...

    def on_resumed(self, sequence: S_contra, resumption: Resumption) -> None:
        """The engine admitted a sequence again that had lost its blocks."""
        ...

    def on_computed(self, sequence: S_contra, computed: ComputedBlocks) -> None:
        """KV of a prefill_only sequence can be exported."""
        ...

    def on_output(self, sequence: S_contra, output: SequenceOutput) -> None:
        """A sequence has new tokens, or ended."""
        ...

    def on_housekeeping(self) -> None:
        """About every 250 ms."""
        ...

    def end(self, sequence: S_contra, error: str) -> None:
        """End a sequence and free what it holds. Idempotent."""
        ...

    def fail(self, sequence: S_contra, error: str) -> None:
        """Forget a sequence that the engine does not have: not taken, or the engine failed."""
        ...
