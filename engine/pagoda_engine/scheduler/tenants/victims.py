"""Who gives up a seat or blocks: the last of the flow that holds the most for its weight.

Nobody is taken from for a flow that would then hold more than the giver did: two flows never take
from each other in turns. Knows who holds how much. Knows nothing of the pool.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf

from pagoda_engine.scheduler.sequence import Flow, Sequence
from pagoda_engine.scheduler.tenants.flows import Flows


class Holdings:
    """What each flow holds at the moment: seats, and places of the pool.

    A block has one place, or one for each of its parts that a sequence holds. Shared ones count for
    each.
    """

    def __init__(
        self, flows: Flows, sequences: Iterable[Sequence], num_places: Callable[[Sequence], int]
    ) -> None:
        """Count; `num_places`: of a sequence."""
        self._flows = flows
        self._num_places = num_places
        self._sequences: Counter[Flow] = Counter()
        self._seats: Counter[Flow] = Counter()
        self._places: Counter[Flow] = Counter()
        by_flow: defaultdict[Flow, list[Sequence]] = defaultdict(list)
        for sequence in sequences:
            by_flow[sequence.flow].append(sequence)
        for flow, members in by_flow.items():
            self._sequences[flow] = len(members)
            self._seats[flow] = sum([s.num_seats for s in members])
            self._places[flow] = sum(map(num_places, members))

    def copy(self) -> "Holdings":
        """Return the same, to see what would be if some gave theirs up."""
        other = Holdings(self._flows, (), self._num_places)
        other._sequences = self._sequences.copy()
        other._seats = self._seats.copy()
        other._places = self._places.copy()
        return other

    def take_places(self, flow: Flow, num_places: int) -> None:
        """Count places that a running sequence got."""
        self._places[flow] += num_places

    def take_seat(self, sequence: Sequence) -> None:
        """Count a sequence that was admitted."""
        self._count(sequence, 1)

    def give_up(self, sequence: Sequence) -> None:
        """Count out a sequence that is about to lose its seats and blocks."""
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        flow = sequence.flow
        self._sequences[flow] += sign
        self._seats[flow] += sign * sequence.num_seats
        self._places[flow] += sign * self._num_places(sequence)

    def num_sequences(self, flow: Flow) -> int:
        """Return how many of its sequences run or import."""
        return self._sequences[flow]

    def seats(self, flow: Flow, *, more: int = 0) -> tuple[bool, float]:
        """Return how heavy a flow is by its seats and `more`; those in the background are most."""
        return flow.is_background, (self._seats[flow] + more) / self._flows.weight(flow)

    def places(self, flow: Flow, *, more: int = 0) -> tuple[bool, float]:
        """Return how heavy a flow is by its places, and `more`."""
        return flow.is_background, (self._places[flow] + more) / self._flows.weight(flow)


def may_give_seats(flows: Flows) -> bool:
    """Tell whether a flow holds so many seats that `seat_victim` may find one of them for another.

    Asked in each step in which all seats are taken and somebody waits, so it looks at flows alone,
    not at their sequences; each of these has a single seat.
    """
    heaviest, has_background = {False: 0.0, True: 0.0}, False
    for state in flows.states:
        num_seats, is_background = state.num_running + state.num_importing, state.flow.is_background
        has_background |= is_background and num_seats > 0
        if num_seats > 1:
            heaviest[is_background] = max(heaviest[is_background], num_seats / state.weight)
    for state in flows.states:
        if state.num_waiting:
            is_background = state.flow.is_background
            if has_background and not is_background:
                return True
            num_seats = state.num_running + state.num_importing + 1
            if heaviest[is_background] > num_seats / state.weight:
                return True
    return False


def seat_victim(
    holdings: Holdings, running: SequenceOf[Sequence], flow: Flow, *, num_seats: int = 1
) -> Sequence | None:
    """Return who gives its seats to a sequence of `flow` that needs so many, if anybody does."""
    last = _givers(holdings, running, flow)
    givers = [f for f in last if holdings.seats(f) > holdings.seats(flow, more=num_seats)]
    return last[max(givers, key=holdings.seats)] if givers else None


def block_victims(
    holdings: Holdings,
    running: SequenceOf[Sequence],
    flow: Flow,
    *,
    num_places: int,
    first: SequenceOf[Sequence] = (),
) -> Iterator[Sequence]:
    """Yield, one after the other, who gives blocks to a sequence of `flow`.

    `holdings` change with each.

    Args:
        holdings: at the moment, without `first`.
        running: in the order of their ranks.
        flow: that needs blocks.
        num_places: that it would get.
        first: sequences that give theirs anyway.
    """
    left = [sequence for sequence in running if sequence not in first]
    while True:
        last = _givers(holdings, left, flow)
        wanted = holdings.places(flow, more=num_places)
        givers = [f for f in last if f != flow and holdings.places(f) > wanted]
        if not givers:
            return
        victim = last[max(givers, key=holdings.places)]
        left.remove(victim)
        holdings.give_up(victim)
        yield victim


def growth_victim(holdings: Holdings, running: SequenceOf[Sequence]) -> Sequence:
    """Return who loses its blocks so that a decode can go on: maybe that decode itself.

    Where nobody has more than one sequence it is the youngest of all, so that the oldest one ends.
    """
    last = _last_of_flows(running)
    several = [flow for flow in last if holdings.num_sequences(flow) > 1]
    if several:
        return last[max(several, key=holdings.places)]
    return max(last.values(), key=lambda s: (s.flow.is_background, s.arrival))


def _givers(holdings: Holdings, running: SequenceOf[Sequence], flow: Flow) -> dict[Flow, Sequence]:
    """Return the last sequence of each flow that may be asked to give one to `flow`.

    Nobody gives its only one, or a large one would begin again and again; but for those in the
    background, to those that are not.
    """
    return {
        giver: sequence
        for giver, sequence in _last_of_flows(running).items()
        if holdings.num_sequences(giver) > 1 or giver.is_background > flow.is_background
    }


def _last_of_flows(running: SequenceOf[Sequence]) -> dict[Flow, Sequence]:
    """Return each flow's last sequence whose blocks may be taken away."""
    return {sequence.flow: sequence for sequence in running if sequence.is_preemptible}
