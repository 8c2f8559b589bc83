"""Where each sequence is: it waits, imports, runs or is held. And whether there is a seat for more.

Knows sequences and their order. Knows nothing of blocks, budgets or what steps cost.
"""

import bisect
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

from pagoda_engine.scheduler.sequence import Flow, Sequence, SequenceState
from pagoda_engine.scheduler.tenants.flows import Flows

_BY_RANK = attrgetter("rank")


class Queues:
    """All sequences of an engine, each in the queue of its state.

    Attributes:
        max_num_seqs: seats. Who runs or imports has one, a beam search one for each beam; held ones
            are in no step and do not count.
        flows: of all of them.
        waiting: by rank.
        running: by rank.
        importing: by id.
        held: by id.
        searches: those that need several seats.
    """

    def __init__(self, max_num_seqs: int) -> None:
        """Begin without sequences."""
        self.max_num_seqs = max_num_seqs
        self.flows = Flows()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.importing: dict[str, Sequence] = {}
        self.held: dict[str, Sequence] = {}
        self.searches: set[Sequence] = set()
        self._sequences: dict[str, Sequence] = {}

    def __len__(self) -> int:
        """Number of sequences in any of the states."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def get(self, sequence_id: str) -> Sequence | None:
        """Return a sequence in any of the states."""
        return self._sequences.get(sequence_id)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        self._sequences[sequence.sequence_id] = sequence
        if sequence.num_seats > 1:
            self.searches.add(sequence)
        self.flows.add(sequence)
        self.wait(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Let a sequence wait in front of all who rank behind it; it is in no other queue."""
        sequence.state = SequenceState.WAITING
        bisect.insort(self.waiting, sequence, key=_BY_RANK)
        self.flows.of(sequence).num_waiting += 1

    def import_kv(self, sequence: Sequence) -> None:
        """Let a sequence wait for its KV; it is in no other queue."""
        sequence.state = SequenceState.IMPORTING
        self.importing[sequence.sequence_id] = sequence
        self.flows.of(sequence).num_importing += 1

    def run(self, sequence: Sequence) -> None:
        """Let a sequence take part in steps; it is in no other queue."""
        sequence.is_import_pending = False
        sequence.state = SequenceState.RUNNING
        bisect.insort(self.running, sequence, key=_BY_RANK)
        self.flows.of(sequence).num_running += 1

    def hold(self, sequence: Sequence) -> None:
        """Take a sequence that runs out of the steps; its state is the caller's to change."""
        self.take_out(sequence)
        self.held[sequence.sequence_id] = sequence

    def take_out(self, sequence: Sequence) -> None:
        """Take a sequence out of its queue; the caller says where it goes."""
        flow = self.flows.of(sequence)
        match sequence.state:
            case SequenceState.WAITING:
                self.waiting.remove(sequence)
                flow.num_waiting -= 1
            case SequenceState.IMPORTING:
                del self.importing[sequence.sequence_id]
                flow.num_importing -= 1
            case SequenceState.RUNNING:
                self.running.remove(sequence)
                flow.num_running -= 1
            case SequenceState.HELD:
                del self.held[sequence.sequence_id]
            case SequenceState.FINISHED:
                raise AssertionError(f"sequence {sequence.sequence_id!r} finished twice")

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in any state; its flow too, if it was the last one."""
        self.take_out(sequence)
        self.flows.remove(sequence)
        del self._sequences[sequence.sequence_id]
        self.searches.discard(sequence)

    def line(self, flow: Flow) -> Iterator[Sequence]:
        """Return those of a flow that wait, in their order."""
        if not self.flows.are_several:
            return iter(self.waiting)
        return (sequence for sequence in self.waiting if sequence.flow == flow)

    def firsts(self) -> Iterator[Sequence]:
        """Yield the first of each flow that waits."""
        flows = {state.flow for state in self.flows.states if state.num_waiting}
        for sequence in self.waiting:
            if sequence.flow in flows:
                yield sequence
                flows.remove(sequence.flow)
                if not flows:
                    return

    def has_seats(self, num_seats: int = 1) -> bool:
        """Tell whether so many more would have a seat."""
        return self.num_taken_seats + num_seats <= self.max_num_seqs

    @property
    def num_taken_seats(self) -> int:
        """Sequences that run or wait for an import, one for each beam of a search."""
        num_seats = len(self.running) + len(self.importing)
        if self.searches:
            waiting = SequenceState.WAITING
            num_seats += num_more_seats(s for s in self.searches if s.state is not waiting)
        return num_seats

    @property
    def num_wanted_seats(self) -> int:
        """Seats of those that run or wait, as many as there are at the most."""
        num_seats = len(self.running) + len(self.waiting) + num_more_seats(self.searches)
        return min(self.max_num_seqs, num_seats)

    def check_invariants(self) -> None:
        """Recount queues and states from first principles."""
        queues = [
            (SequenceState.WAITING, list(self.waiting)),
            (SequenceState.IMPORTING, list(self.importing.values())),
            (SequenceState.RUNNING, self.running),
            (SequenceState.HELD, list(self.held.values())),
        ]
        queued = [s for _, queue in queues for s in queue]
        assert len(queued) == len(self._sequences) == len({s.sequence_id for s in queued})
        assert all(self._sequences[s.sequence_id] is s for s in queued)
        assert all(s.state is state for state, queue in queues for s in queue)
        assert [*self.waiting] == sorted(self.waiting, key=_BY_RANK), "the queue lost its order"
        assert self.running == sorted(self.running, key=_BY_RANK), "the batch lost its order"
        assert self.num_taken_seats <= self.max_num_seqs
        assert self.searches == {s for s in queued if s.num_seats > 1}
        self.flows.check_invariants(queued)


def num_more_seats(searches: Iterable[Sequence]) -> int:
    """Return the seats that searches need beside the one of each."""
    return sum(sequence.num_seats - 1 for sequence in searches)
