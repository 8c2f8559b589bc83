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


def rest_after(step_seconds: float, *, num_running: int, num_joining: int) -> float:
    """Return how long to wait after a step of `num_running` decodes; seconds.

    Not at all if fewer join than wait for them: side by side few decodes cost a prompt less than
    they would lose. Else the longer the more they are.
    """
    if not num_running or num_joining <= num_running:
        return 0.0
    return step_seconds * min(num_joining / num_running, MAX_REST)
