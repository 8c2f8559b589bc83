"""A step that several tenants share: what each flow could use of it, and what it gets.

Knows queues and what steps cost. Knows nothing of blocks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.sequence import Flow, Sequence
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.tenants.lateness import Lateness
from pagoda_engine.scheduler.tenants.step_shares import Demand, Share, share_step, unclaimed_work


@dataclass(frozen=True, slots=True)
class SharedStep:
    """Who gets what of one step.

    Attributes:
        demands: what each flow could use.
        shares: what each gets.
        unclaimed: time of the step that is in no share.
    """

    demands: Mapping[Flow, Demand]
    shares: Mapping[Flow, Share]
    unclaimed: float

    @classmethod
    def of(
        cls,
        demands: Mapping[Flow, Demand],
        cost: StepCost,
        *,
        max_num_seqs: int,
        max_num_tokens: int,
    ) -> "SharedStep":
        """Deal a step out; see `share_step`."""
        shares = share_step(demands, cost, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens)
        unclaimed = unclaimed_work(
            demands, shares, cost, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens
        )
        return cls(demands, shares, unclaimed)

    def turns(self, decodes: list[Sequence]) -> list[Sequence]:
        """Return as many of each flow's decodes as it has a share of: those that waited longest."""
        shares = self.shares
        if all(shares[flow].num_decodes >= d.num_decodes for flow, d in self.demands.items()):
            return decodes
        left = {flow: share.num_decodes for flow, share in shares.items()}
        chosen = []
        for sequence in sorted(decodes, key=lambda s: (s.last_step, s.rank)):
            if left[sequence.flow]:  # beams are not parted, even if fewer turns are left
                left[sequence.flow] = max(0, left[sequence.flow] - len(sequence.members))
                chosen.append(sequence)
        return sorted(chosen, key=lambda s: s.rank)


def demands_of(
    queues: Queues,
    lateness: Lateness,
    *,
    decodes: Iterable[Sequence],
    prefills: Iterable[Sequence],
    foreseen_tokens: Mapping[Flow, int],
) -> dict[Flow, Demand]:
    """Return what each flow could use of a step.

    Args:
        queues: of all flows.
        lateness: of theirs.
        decodes: all that could be in the step.
        prefills: that run.
        foreseen_tokens: of prompts that may be admitted.
    """
    num_decodes, num_tokens, num_importing = Counter[Flow](), Counter[Flow](), Counter[Flow]()
    num_tokens.update(foreseen_tokens)
    for sequence in prefills:
        num_tokens[sequence.flow] += sequence.num_uncomputed_tokens
    for sequence in decodes:
        num_decodes[sequence.flow] += 1 + len(sequence.siblings)
    for sequence in queues.importing.values():
        num_importing[sequence.flow] += 1
    demands = {}
    for flow in queues.flows:
        last_decode, last_prefill = queues.flows.last_steps(flow)
        demands[flow] = Demand(
            weight=queues.flows.weight(flow),
            last_decode=last_decode,
            last_prefill=last_prefill,
            num_decodes=num_decodes[flow],
            num_prefill_tokens=num_tokens[flow],
            num_importing=num_importing[flow],
            is_late=lateness.is_late(flow),
        )
    return demands
