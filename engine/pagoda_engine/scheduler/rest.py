"""When decodes wait a moment for those that are about to join them.

Prompts are computed by another worker of this machine. Each step of few decodes takes processors
from it, and reads all weights for few tokens; a little later the same step would be one of many.
Knows numbers. Knows nothing of sequences or processors.
"""

from typing import Protocol

MAX_REST = 3.0
"""Times that of the step before; so a decode takes at most four times as long as without."""


class SharedProcessors(Protocol):
    """Those of this machine, which other workers use too."""

    def others_compute(self) -> bool:
        """Whether one of the others computes at the moment."""
        ...

    def rest(self) -> None:
        """Leave all of them to the others until the next step."""
        ...


def rest_after(
    step_seconds: float,
    *,
    num_running: int,
    num_joining: int,
    num_flows: int = 1,
    num_newcomers: int = 0,
) -> float:
    """Return how long to wait after a step of `num_running` decodes; seconds.

    If more join than wait for them: the longer the more they are. Of fewer the prompts are computed
    side by side with decodes, which costs them less than these would lose. But a tenant that has
    nothing but what joins gets its part of the processors there, not here: the others rest for as
    long as they computed.

    Args:
        step_seconds: of the step.
        num_running: its decodes.
        num_joining: sequences that wait for KV.
        num_flows: whose sequences run.
        num_newcomers: flows, not in the background, that join and have none that runs.
    """
    if not num_running:
        return 0.0
    rest = min(num_newcomers / max(1, num_flows), 1.0)
    if num_joining > num_running:
        rest = max(rest, min(num_joining / num_running, MAX_REST))
    return step_seconds * rest
