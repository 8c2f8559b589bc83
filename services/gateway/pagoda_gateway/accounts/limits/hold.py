"""What one request takes of its limits, as its gateway knows it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope

Status = Literal["live", "settled", "void"]


@dataclass(frozen=True, slots=True)
class Amount:
    """What is limited beside the request itself: tokens, prompt and output; money."""

    tokens: int
    micros: int


@dataclass(slots=True, eq=False)
class Hold:
    """One request's share of what its scopes may use.

    Attributes:
        request_id: ours; a hold is taken once under it.
        key: who asks.
        amount: while it is live the most that it can still use; then what it used.
        most: asked while it is live; never grows.
        status: void: it took nothing, or must not be found to have.
        taken_seconds: when Redis counted it, on the limiter's own clock; None: it never has.
        day: whose budget it then counted for, days since 1970.
        generation: of the counters that last had it; None: none has.
        ended_seconds: when it was settled, on the limiter's own clock.
    """

    request_id: str
    key: ApiKey
    amount: Amount
    most: Callable[[], Amount]
    status: Status = "live"
    taken_seconds: float | None = None
    day: int = 0
    generation: str | None = None
    ended_seconds: float = field(default=0.0)

    @property
    def organisation(self) -> str:
        """Whose counters have it."""
        return self.key.organisation

    def as_item(self, generation: str, now: float) -> dict[str, Any]:
        """Return it as the script's `put` takes it.

        Args:
            generation: of the counters now.
            now: on the limiter's own clock.
        """
        item: dict[str, Any] = {
            "id": self.request_id,
            "status": self.status,
            "tokens": self.amount.tokens,
            "micros": self.amount.micros,
        }
        if self.generation != generation:
            item |= {
                "is_restored": True,
                "is_new": self.generation is None,
                "scopes": [scope_name(scope) for scope in self.key.scopes],
                "budgets": [scope_name(s) for s in self.key.scopes if s.has_budget],
            }
            if self.taken_seconds is not None:
                item |= {"ago": int(1000 * (now - self.taken_seconds)), "day": self.day}
        return item


def scope_name(scope: LimitScope) -> str:
    """Return a scope's name among an organisation's counters."""
    return f"{scope.kind}:{scope.name}"
