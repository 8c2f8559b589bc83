"""What a key, its tenant and its organisation are limited to, each by its tier."""

from dataclasses import dataclass
from typing import Literal

ScopeKind = Literal["key", "tenant", "organisation"]


@dataclass(frozen=True, slots=True)
class LimitScope:
    """One of a request's owners that has a tier; a limit that is None is none.

    Attributes:
        kind: what it is.
        name: its id.
        is_queueing: a request over one of them waits; else it is refused at once.
    """

    kind: ScopeKind
    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    daily_budget_micros: int | None = None
    monthly_budget_micros: int | None = None
    is_queueing: bool = False

    @property
    def has_budget(self) -> bool:
        """Whether money is limited."""
        return self.daily_budget_micros is not None or self.monthly_budget_micros is not None

    def __str__(self) -> str:
        """Return it as messages name it."""
        return f"{'API key' if self.kind == 'key' else self.kind} '{self.name}'"
