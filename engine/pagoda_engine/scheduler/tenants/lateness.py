"""Who has waited for others for longer than its share of time, by what steps are predicted to take.

Who comes in the middle of a step has to wait for its end, whatever is in it. That is made up for:
until then its steps are shorter. Knows what steps cost. Knows nothing of queues, blocks or seats.
"""

from collections.abc import Iterable, Mapping, Sequence

from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.sequence import Flow
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.tenants.step_shares import Demand, Share, slowdown, total_weight

MAX_LATE = 16.0
"""In steps of a single decode. What is beyond is forgotten, or it would be made up for until long
after its cause has gone."""


class Lateness:
    """How late each flow is that has sequences here, in steps of a single decode.

    Nobody is ever early: what a flow did not need gives it no claim on what comes. Those in the
    background are never late: whoever waits for an answer does not make up for them.
    """

    def __init__(self) -> None:
        self._late: dict[Flow, float] = {}
        self._batch: Sequence[ScheduledSequence] = ()  # of the latest step

    def is_late(self, flow: Flow) -> bool:
        """Return whether something is to be made up for."""
        return self._late.get(flow, 0.0) > 0

    def forget(self, flow: Flow) -> None:
        """Forget a flow that has nothing here any more."""
        self._late.pop(flow, None)

    def interrupted(self, flow: Flow, cost: StepCost) -> None:
        """Remember that a flow can go on, but for the latest step, of others, which may run yet."""
        if self._batch:
            took = _took(_shares(self._batch).values(), cost)
            self._add(flow, took, cost.base + cost.per_decode)

    def not_computed(self) -> None:
        """Note that the latest step was given up: nobody waited for it."""
        self._batch = ()

    def note_step(
        self,
        batch: Sequence[ScheduledSequence],
        demands: Mapping[Flow, Demand] | None,
        cost: StepCost,
    ) -> None:
        """Remember who had less of a step, for its length, than its share of time.

        Args:
            batch: of the step.
            demands: what flows could have used of it; None: there is one flow, which had all.
            cost: of steps.
        """
        self._batch = batch
        if demands is None:
            self._late.clear()
            return
        shares = _shares(batch)
        took = _took(shares.values(), cost)
        weights = total_weight(demand for demand in demands.values() if demand.is_active)
        unit = cost.base + cost.per_decode
        for flow, demand in demands.items():
            if demand.num_decodes or demand.num_prefill_tokens:
                alone = _took([shares[flow]], cost) if flow in shares else 0.0
                self._add(flow, took - slowdown(demand, weights) * alone, unit)

    def _add(self, flow: Flow, late: float, unit: float) -> None:
        """Add to how late a flow is; `unit`: of a step of a single decode."""
        if unit > 0 and not flow.is_background:
            self._late[flow] = min(MAX_LATE, max(0.0, self._late.get(flow, 0.0) + late / unit))


def _shares(batch: Sequence[ScheduledSequence]) -> dict[Flow, Share]:
    """Return what each flow had of a step; tokens that a grammar forced count as a prompt's."""
    shares: dict[Flow, Share] = {}
    for sequence, _, num_new_tokens, is_prefill, _, _ in batch:
        share = shares.get(sequence.flow)
        if share is None:
            share = shares[sequence.flow] = Share()
        if is_prefill:
            share.num_prefill_tokens += num_new_tokens
        else:
            share.num_decodes += 1
            share.num_prefill_tokens += num_new_tokens - 1
    return shares


def _took(shares: Iterable[Share], cost: StepCost) -> float:
    num_decodes = num_prefill_tokens = 0
    for share in shares:
        num_decodes += share.num_decodes
        num_prefill_tokens += share.num_prefill_tokens
    return cost.of(num_decodes=num_decodes, num_prefill_tokens=num_prefill_tokens)
