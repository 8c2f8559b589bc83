"""A step that several tenants share: what each flow could use of it, and what it gets.

Knows queues and what steps cost. Knows nothing of blocks.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.sequence import Flow, Sequence
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.tenants.lateness import Lateness
from pagoda_engine.scheduler.tenants.step_shares import Demand, share_step, unclaimed_work

_LAST_STEP, _RANK = attrgetter("last_step"), attrgetter("rank")


class SharedStep:
    """Who gets what of one step.

    Attributes:
        demands: what each flow could use.
        shares: what each gets.
    """

    __slots__ = ("_cost", "_max_num_seqs", "_max_num_tokens", "demands", "shares")

    def __init__(
        self,
        demands: Mapping[Flow, Demand],
        cost: StepCost,
        *,
        max_num_seqs: int,
        max_num_tokens: int,
    ) -> None:
        """Deal a step out; see `share_step`."""
        self.demands = demands
        self.shares = share_step(
            demands, cost, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens
        )
        self._cost = cost
        self._max_num_seqs = max_num_seqs
        self._max_num_tokens = max_num_tokens

    @property
    def unclaimed(self) -> float:
        """Time of the step that is in no share."""
        return unclaimed_work(
            self.demands,
            self.shares,
            self._cost,
            max_num_seqs=self._max_num_seqs,
            max_num_tokens=self._max_num_tokens,
        )

    def turns(self, decodes: list[Sequence]) -> list[Sequence]:
        """Return as many of each flow's decodes as it has a share of: those that waited longest.

        `decodes` are in the order of their ranks, and so is what is returned.
        """
        left = {flow: share.num_decodes for flow, share in self.shares.items()}
        if all(left[flow] >= demand.num_decodes for flow, demand in self.demands.items()):
            return decodes
        chosen = []
        for sequence in sorted(decodes, key=_LAST_STEP):  # among equals in their order
            num_left = left[sequence.flow]
            if num_left:  # beams are not parted, even if fewer turns are left
                left[sequence.flow] = max(0, num_left - 1 - len(sequence.siblings))
                chosen.append(sequence)
        chosen.sort(key=_RANK)
        return chosen


def demands_of(
    queues: Queues,
    lateness: Lateness,
    *,
    decodes: Iterable[Sequence],
    prefills: Iterable[Sequence],
    resting: Iterable[Sequence],
    foreseen_tokens: Mapping[Flow, int],
) -> dict[Flow, Demand]:
    """Return what each flow could use of a step.

    Args:
        queues: of all flows.
        lateness: of theirs.
        decodes: all that could be in the step.
        prefills: that run.
        resting: all others that run.
        foreseen_tokens: of prompts that may be admitted.
    """
    demands = {
        state.flow: Demand(
            state.weight,
            state.last_decode,
            state.last_prefill,
            state.num_running,
            0,
            state.num_importing,
            lateness.is_late(state.flow),
        )
        for state in queues.flows.states
    }
    for flow, num_tokens in foreseen_tokens.items():
        demands[flow].num_prefill_tokens = num_tokens
    for sequence in prefills:
        demand = demands[sequence.flow]
        demand.num_decodes -= 1
        demand.num_prefill_tokens += sequence.num_uncomputed_tokens
    for sequence in resting:
        demands[sequence.flow].num_decodes -= 1
    if queues.searches:
        for sequence in decodes:
            demands[sequence.flow].num_decodes += len(sequence.siblings)
    return demands
