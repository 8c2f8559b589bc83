"""What the rules of one request's policy found: for its account, its trace and the metrics."""

from typing import Literal

from pagoda_gateway import metrics

Direction = Literal["input", "output"]
Action = Literal["block", "redact", "flag"]


class Findings:
    """Rules that matched, each named once; texts are never kept."""

    def __init__(self, policy: str) -> None:
        """Start with none, of a policy of this name."""
        self._policy = policy
        self._names: dict[str, None] = {}  # in the order of the first match

    def note(self, rule: str, action: Action, direction: Direction) -> None:
        """A rule matched."""
        metrics.SAFETY_MATCHES.labels(self._policy, rule, action, direction).inc()
        self._names[f"{self._policy}/{rule} {action} {direction}"] = None

    @property
    def names(self) -> list[str]:
        """Each as "policy/rule action direction"."""
        return list(self._names)
