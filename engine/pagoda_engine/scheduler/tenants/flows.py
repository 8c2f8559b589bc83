"""Which flows have sequences here, what they weigh, and how many wait, import and run.

Knows sequences. Knows nothing of queues, budgets or the pool.
"""

from collections import Counter
from collections.abc import Iterator, ValuesView
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.scheduler.sequence import Flow, Sequence, SequenceState


@dataclass(slots=True)
class FlowState:
    """What is known of one flow, kept as its sequences come, go on and end.

    Attributes:
        flow: whose it is; the same object as its sequences have.
        weight: what it gets beside one of weight 1.
        num_sequences: in any state.
        num_waiting: of them, those that wait.
        num_importing: of them, those that wait for their KV.
        num_running: of them, those that run.
        last_decode: the latest step that had a decode of it.
        last_prefill: the latest step that had tokens of its prompts.
    """

    flow: Flow
    weight: float = 1.0
    num_sequences: int = 0
    num_waiting: int = 0
    num_importing: int = 0
    num_running: int = 0
    last_decode: int = 0
    last_prefill: int = 0


class Flows:
    """The flows of all sequences that an engine has."""

    def __init__(self) -> None:
        self._states: dict[Flow, FlowState] = {}

    def __iter__(self) -> Iterator[Flow]:
        return iter(tuple(self._states))

    def __contains__(self, flow: object) -> bool:
        """Return whether a flow has sequences here."""
        return flow in self._states

    @property
    def are_several(self) -> bool:
        """Whether anything must be shared."""
        return len(self._states) > 1

    @property
    def states(self) -> ValuesView[FlowState]:
        """Of all flows."""
        return self._states.values()

    def of(self, sequence: Sequence) -> FlowState:
        """Return the state of a sequence's flow; who moves the sequence counts it there."""
        return self._states[sequence.flow]

    def add(self, sequence: Sequence) -> None:
        """Count a new sequence; its flow weighs what the latest of it says."""
        state = self._states.get(sequence.flow)
        if state is None:
            state = self._states[sequence.flow] = FlowState(sequence.flow)
        sequence.flow = state.flow  # the same object: each step looks up those of all sequences
        state.weight = sequence.request.weight
        state.num_sequences += 1

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        state = self._states[sequence.flow]
        state.num_sequences -= 1
        if not state.num_sequences:
            del self._states[sequence.flow]

    def note_step(self, flow: Flow, step: int, *, is_prefill: bool) -> None:
        """Remember the latest step that had something of a flow."""
        if is_prefill:
            self._states[flow].last_prefill = step
        else:
            self._states[flow].last_decode = step

    def weight(self, flow: Flow) -> float:
        """Return what the flow gets beside one of weight 1."""
        return self._states[flow].weight

    def last_steps(self, flow: Flow) -> tuple[int, int]:
        """Return the latest steps that had a decode of it, and tokens of its prompts."""
        state = self._states[flow]
        return state.last_decode, state.last_prefill

    def check_invariants(self, sequences: SequenceOf[Sequence]) -> None:
        """Recount."""
        counts = Counter((sequence.flow, sequence.state) for sequence in sequences)
        totals = Counter(sequence.flow for sequence in sequences)
        assert totals == {flow: state.num_sequences for flow, state in self._states.items()}
        for flow, state in self._states.items():
            assert state.num_waiting == counts[flow, SequenceState.WAITING]
            assert state.num_importing == counts[flow, SequenceState.IMPORTING]
            assert state.num_running == counts[flow, SequenceState.RUNNING]
