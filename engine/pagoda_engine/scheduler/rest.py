"""When decodes wait a moment for those that are about to join them.

Prompts are computed by another worker of this machine. Each step of few decodes takes processors
from it, and reads all weights for few tokens; a little later the same step would be one of many.
Knows numbers. Knows nothing of sequences or processors.
"""

from dataclasses import dataclass
from typing import Protocol

MAX_REST = 4.0
"""Times that of the step before; so a decode takes at most five times as long as without."""
FEW_JOIN = 0.4
"""For each that decodes. Fewer prompts, beside decodes, cost less than these would lose."""
REST_FOR_EACH = 2.0
"""Times that of the step before, for as many that join as decode."""


class SharedProcessors(Protocol):
    """Those of this machine, which other workers use too."""

    def others_compute(self) -> bool:
        """Whether one of the others computes at the moment."""
        ...

    def rest(self) -> None:
        """Leave all of them to the others until the next step."""
        ...


@dataclass(frozen=True, slots=True)
class RestCounts:
    """What decodes, and what may join it.

    Attributes:
        num_running: sequences that decode.
        num_joining: sequences that wait for KV; those in the background count beside others of
            these alone.
        num_flows: whose sequences run.
        num_newcomers: flows, not in the background, that join and have none that runs.
    """

    num_running: int
    num_joining: int
    num_flows: int = 1
    num_newcomers: int = 0


def rest_after(step_seconds: float, counts: RestCounts) -> float:
    """Return how long to wait after a step of decodes that took this long; seconds.

    The longer the more join, if they are not few: the prompts have all processors meanwhile, and
    the next steps more rows. But a tenant that has nothing but what joins gets its part of the
    processors there, not here: for it the others rest for as long as they computed.
    """
    if not counts.num_running:
        return 0.0
    rest = min(counts.num_newcomers / max(1, counts.num_flows), 1.0)
    if counts.num_joining > FEW_JOIN * counts.num_running:
        joining = counts.num_joining / counts.num_running
        rest = max(rest, min(REST_FOR_EACH * joining, MAX_REST))
    return step_seconds * rest
