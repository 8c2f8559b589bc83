"""Why a request is over a limit, in words, and what its headers say. Knows no Redis."""

from collections.abc import Sequence

from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.counters import Dimension, Excess, Usage, limit_of
from pagoda_gateway.accounts.limits.hold import Amount
from pagoda_gateway.errors import DeadlineError, QuotaError, RateLimitError

UNKNOWN_WAIT_SECONDS = 1.0  # for requests in flight to end
QUOTA = "insufficient_quota"
MICROS = 1_000_000

_WORDS: dict[Dimension, tuple[str, str]] = {  # what is limited, OpenAI's `type`
    "requests": ("requests per minute", "requests"),
    "tokens": ("tokens per minute", "tokens"),
    "running": ("concurrent requests", "requests"),
    "day": ("the budget of a day (UTC)", QUOTA),
    "month": ("the budget of a month (UTC)", QUOTA),
}


def check_size(scopes: Sequence[LimitScope], amount: Amount) -> None:
    """Raise RateLimitError for a request that can never fit, however long it waits."""
    needs: dict[Dimension, int] = {
        "tokens": amount.tokens, "day": amount.micros, "month": amount.micros,
    }  # fmt: skip
    for scope in scopes:
        for dimension, need in needs.items():
            limit = limit_of(scope, dimension)
            if limit is None or need <= limit:
                continue
            what, kind = _WORDS[dimension]
            message = (
                f"Request too large for the {scope} on {what}: limit {_shown(dimension, limit)}, "
                f"requested {_shown(dimension, need)} (prompt and the most output that it may "
                f"have). It can never run: {_remedy(limit)}"
            )
            error = QuotaError if kind == QUOTA else RateLimitError
            raise error(message, kind=kind, should_retry=False)


def _remedy(limit: int) -> str:
    if not limit:
        return "nothing that costs anything does; ask for a higher limit"
    return "send a shorter prompt, a smaller max_tokens or n, or ask for a higher limit"


def worst_of(excesses: Sequence[Excess]) -> Excess:
    """Return the one that takes longest: when it fits, so do the others."""
    return max(excesses, key=lambda excess: (_is_used_up(excess), excess.wait_ms or 0))


def refusal_of(excess: Excess, amount: Amount, *, is_batch: bool) -> RateLimitError:
    """Return the error for a request that does not fit now.

    A line of a batch does not wait for a new day or month: it would keep others from running.
    """
    kind, problem = _WORDS[excess.dimension][1], _problem(excess, amount)
    wait = UNKNOWN_WAIT_SECONDS if excess.wait_ms is None else excess.wait_ms / 1000
    if _is_used_up(excess):
        return QuotaError(
            f"You exceeded your current quota, of {problem}; it begins anew in {duration(wait)}, "
            "or ask for a higher one",
            kind=kind,
            retry_after_seconds=None if is_batch else wait,
            should_retry=False,
        )
    advice = "when requests in flight end" if excess.wait_ms is None else f"in {duration(wait)}"
    kind = "requests" if kind == QUOTA else kind
    return RateLimitError(
        f"Rate limit reached for {problem}; try again {advice}, or ask for a higher limit",
        kind=kind,
        retry_after_seconds=wait,
    )


def deadline_of(excess: Excess | None, amount: Amount) -> DeadlineError:
    """Return the error for a request whose deadline passes while it waits for room.

    None: it waits behind others, and nobody has asked for it yet.
    """
    what = (
        "your limits, behind others" if excess is None
        else f"the limit of {_problem(excess, amount)}"
    )  # fmt: skip
    return DeadlineError(
        f"the request did not begin before its deadline: it waited for room in {what}; give it "
        "more time, send fewer requests at once, or ask for a higher limit"
    )


def _problem(excess: Excess, amount: Amount) -> str:
    """Return whose limit is exceeded, and by what."""
    limit = limit_of(excess.scope, excess.dimension)
    assert limit is not None, "what has no limit is not exceeded"
    need = {"tokens": amount.tokens, "day": amount.micros, "month": amount.micros}.get(
        excess.dimension, 1
    )
    used = f"used {_shown(excess.dimension, excess.used)}"
    if excess.held:
        used += f", held for requests in flight {_shown(excess.dimension, excess.held)}"
    what = _WORDS[excess.dimension][0]
    return (
        f"the {excess.scope} on {what}: limit {_shown(excess.dimension, limit)}, {used}, "
        f"requested {_shown(excess.dimension, need)}"
    )


def rate_headers(scopes: Sequence[LimitScope], usages: Sequence[Usage]) -> dict[str, str]:
    """Return x-ratelimit-* as OpenAI names them, of the scope with the least room in each."""
    headers: dict[str, str] = {}
    dimensions: tuple[Dimension, ...] = ("requests", "tokens")
    for dimension in dimensions:
        rooms = [
            (max(0, limit - getattr(usage, dimension)), limit, usage)
            for scope, usage in zip(scopes, usages, strict=True)
            if (limit := limit_of(scope, dimension)) is not None
        ]
        if not rooms:
            continue
        remaining, limit, usage = min(rooms, key=lambda room: room[:2])
        reset_ms = getattr(usage, f"{dimension}_reset_ms")
        headers[f"x-ratelimit-limit-{dimension}"] = str(limit)
        headers[f"x-ratelimit-remaining-{dimension}"] = str(remaining)
        headers[f"x-ratelimit-reset-{dimension}"] = duration(reset_ms / 1000)
    return headers


def duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: "120ms", "8.64s", "6m0s", "1h0m5s"."""
    milliseconds = round(1000 * seconds)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    words = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if minutes or hours:
        words = f"{minutes}m{words}"
    return f"{hours}h{words}" if hours else words


def _is_used_up(excess: Excess) -> bool:
    """Whether it is money, and that of requests in flight would not be enough."""
    return _WORDS[excess.dimension][1] == QUOTA and excess.wait_ms is not None


def _shown(dimension: Dimension, amount: int) -> str:
    """Return an amount; money in the unit that prices are in."""
    if _WORDS[dimension][1] != QUOTA:
        return str(amount)
    whole, micros = divmod(amount, MICROS)
    return f"{whole}.{micros:06d}".rstrip("0").rstrip(".")
