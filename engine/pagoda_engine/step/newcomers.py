"""Whether the step that runs is given up for somebody who comes while it does.

Knows flows, clocks and what steps are predicted to take. Knows nothing of what they compute.
"""

import threading
from collections.abc import Callable, Sequence

from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.sequence import Flow
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_kernels.cut import Cut

LEAST_STEPS = 2.0
"""A step is given up if it takes so many times what one of a single decode does."""
COMPUTED_TIMES = 9.0
"""So many times what a step given up had taken, none is given up again: a tenth is lost at most."""


class Newcomers:
    """Those of other flows who were announced and have not been taken in yet.

    Where a step is computed before anything else can happen (on a CPU), a tenant's request would
    wait for all of another one's large step. So such a step is cut short before its next layer, and
    its tokens are computed again later.

    `announce` may be called by any thread, the rest by the one that steps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cut = Cut()
        self._lock = threading.Lock()
        self._waiting: dict[str, Flow] = {}
        self._running: frozenset[Flow] = frozenset()  # of the step that may be cut; empty: none may
        self._started = 0.0
        self._earliest = 0.0

    def announce(self, sequence_id: str, flow: Flow) -> None:
        """Say that a sequence is on its way; `take` is sure to follow."""
        if flow.is_background:
            return
        with self._lock:
            self._waiting[sequence_id] = flow
            self._ask()

    def take(self, sequence_id: str) -> None:
        """Note that a sequence is here, or never comes."""
        with self._lock:
            self._waiting.pop(sequence_id, None)

    def begin(self, batch: Sequence[ScheduledSequence], cost: StepCost) -> Cut | None:
        """Return what may cut the step short that begins now; None: nobody may.

        Args:
            batch: of the step.
            cost: of steps.
        """
        self._started = self._clock()
        if self._started < self._earliest or not _is_large(batch, cost):
            return None
        with self._lock:
            self._cut.withdraw()
            self._running = frozenset([entry[0].flow for entry in batch])
            self._ask()
        return self._cut

    def end(self) -> None:
        """Note that the step is over."""
        with self._lock:
            self._running = frozenset()

    def was_cut(self) -> float:
        """Note that the step was cut short; return the seconds that it had taken."""
        self.end()
        now = self._clock()
        seconds = now - self._started
        self._earliest = now + COMPUTED_TIMES * seconds
        return seconds

    def _ask(self) -> None:
        if self._running and any(flow not in self._running for flow in self._waiting.values()):
            self._cut.ask()


def _is_large(batch: Sequence[ScheduledSequence], cost: StepCost) -> bool:
    single = cost.of(num_decodes=1, num_prefill_tokens=0)
    prompts = [entry for entry in batch if entry[3]]
    work = cost.per_decode * (len(batch) - len(prompts))
    work += sum(cost.of_prompt(entry.first_token, entry.num_new_tokens) for entry in prompts)
    return cost.base + work >= LEAST_STEPS * single
