"""One request's way through its limits: in, or refused, or in after a wait; and out again."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway import metrics
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.accounted import UnaccountedError
from pagoda_gateway.accounts.limits.counters import CountersError, Excess
from pagoda_gateway.accounts.limits.hold import Amount, Hold
from pagoda_gateway.accounts.limits.limiter import Limiter
from pagoda_gateway.accounts.limits.refusal import (
    check_size,
    deadline_of,
    rate_headers,
    refusal_of,
    worst_of,
)
from pagoda_gateway.accounts.limits.waiting_line import WaitingLines
from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.errors import DeadlineError, RateLimitError, UnavailableError

ASK_AGAIN_SECONDS = 0.25  # another replica may have given something back
RETRY_AFTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LimitedRequest:
    """What a request is to its limits.

    Attributes:
        request_id: ours.
        model: its name.
        num_prompt_tokens: each prompt counted once, as it is billed.
        most_output_tokens: asked while the request runs: all that it may still come to.
        service_tier: a line of a batch is refused where others wait: its batch asks again.
        arrived_unix_seconds: when it came.
        ask_again: returns its key as it is by now, with its limits; raises GatewayError if it may
            not run any more.
    """

    request_id: str
    model: str
    num_prompt_tokens: int
    most_output_tokens: Callable[[], int]
    service_tier: str
    arrived_unix_seconds: float
    ask_again: Callable[[], Awaitable[ApiKey]]


@dataclass(frozen=True, slots=True)
class Limits:
    """All that requests need to be limited.

    Attributes:
        limiter: holds of this gateway.
        prices: of models.
        lines: of requests that wait.
        queue_seconds: how long one may wait.
        is_open: whether requests run uncounted where they cannot be counted.
    """

    limiter: Limiter
    prices: PriceBook
    lines: WaitingLines
    queue_seconds: float
    is_open: bool

    def reservation(
        self, key: ApiKey, request: LimitedRequest, on_headers: Callable[[dict[str, str]], None]
    ) -> "Reservation":
        """Return the reservation of a request whose key has limits.

        `on_headers` hears what the head of the answer should say of them.
        """
        return Reservation(self, key, request, on_headers)


class Reservation:
    """Opens the way for one request, and settles what it used."""

    def __init__(
        self,
        limits: Limits,
        key: ApiKey,
        request: LimitedRequest,
        on_headers: Callable[[dict[str, str]], None],
    ) -> None:
        """Take nothing yet."""
        self.stage = "limits"  # what the request waits for
        self._limits = limits
        self._key = key
        self._request = request
        self._on_headers = on_headers
        self._hold = Hold(request.request_id, key, self._most(), self._most)
        self._is_held = False
        self._worst: Excess | None = None  # of what it waits for

    async def enter(self) -> None:
        """Return when the request may run.

        Raises:
            RateLimitError: it is over a limit, and must not or need not wait.
            UnavailableError: limits cannot be counted now.
            GatewayError: its key was revoked while it waited, or may ask for less than before.
        """
        self._check_size()
        try:
            await self._enter()
            self._is_held = True
        except CountersError as error:
            if self._limits.is_open:
                self._limits.limiter.admit_uncounted(self._hold)
                self._is_held = True
                return
            self._limits.limiter.give_up(self._hold)
            raise UnavailableError(
                "what was spent of your budget is not accounted yet; try again"
                if isinstance(error, UnaccountedError)
                else "the limits of your key cannot be checked now; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from error
        except asyncio.CancelledError:
            self._limits.limiter.give_up(self._hold)  # it may be taken
            raise

    def expired(self) -> DeadlineError:
        """Return the error for a request whose deadline passes in `enter`."""
        return deadline_of(self._worst, self._hold.amount)

    def settle(self, opened: UsageOpen | None, closed: UsageClose, num_tokens: int) -> None:
        """Give back what the request did not use.

        Args:
            opened: its open record; None: nothing of it is billed.
            closed: what is billed, which budgets count: no more than was delivered.
            num_tokens: what was computed, which rates count: whoever got it.
        """
        if not self._is_held:
            return
        self._is_held = False
        if opened is None and not num_tokens:
            self._limits.limiter.give_up(self._hold)
            return
        micros = 0 if opened is None else self._limits.prices.price(opened, closed).total_micros
        self._limits.limiter.settle(self._hold, Amount(num_tokens, micros))

    def _most(self) -> Amount:
        request = self._request
        num_output_tokens = request.most_output_tokens()
        micros = self._limits.prices.most_micros(
            request.model,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            service_tier=request.service_tier,
            at=request.arrived_unix_seconds,  # as it will be billed
        )
        return Amount(request.num_prompt_tokens + num_output_tokens, micros)

    async def _enter(self) -> None:
        tenant, lines = self._key.tenant, self._limits.lines
        seconds = self._limits.queue_seconds
        if not (self._is_patient and lines.num_waiting(tenant)):
            excesses = await self._try()
            if not excesses:
                return
            if not self._may_wait(excesses, seconds):
                raise self._refused(excesses)
        if lines.is_full(tenant):
            raise RateLimitError(
                f"{lines.max_requests} of your requests wait for room in your limits already; try "
                "again later, or ask for higher limits",
                kind="requests",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        deadline = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            async with lines.turn(tenant, seconds):
                await self._wait(deadline)
                return
        if excesses := await self._try_again():  # it never was the first
            raise self._refused(excesses)

    async def _wait(self, deadline: float) -> None:
        """Ask again and again until there is room, or no more patience."""
        loop = asyncio.get_running_loop()
        while excesses := await self._try_again():
            if not self._may_wait(excesses, deadline - loop.time()):
                raise self._refused(excesses)
            wait = min(ASK_AGAIN_SECONDS, (worst_of(excesses).wait_ms or math.inf) / 1000)
            await self._limits.limiter.released(self._key.organisation, wait)
        metrics.LIMITED_WAITS.inc()

    async def _try_again(self) -> tuple[Excess, ...]:
        """Take all by the limits that there are by now, or return why not."""
        key = await self._request.ask_again()
        if key != self._key:  # what was refused took nothing
            self._key = key
            self._hold = Hold(self._request.request_id, key, self._most(), self._most)
            self._check_size()
        return await self._try()

    def _check_size(self) -> None:
        check_size([_as_known(scope, self._key) for scope in self._key.scopes], self._hold.amount)

    async def _try(self) -> tuple[Excess, ...]:
        """Take all, or return why not."""
        answer = await self._limits.limiter.take(self._hold)
        self._on_headers(rate_headers(self._key.scopes, answer.usages))
        if answer.excesses:
            self._worst = worst = self._as_known(worst_of(answer.excesses))
            self.stage = f"limits: {worst.dimension} of the {worst.scope.kind}"
        return answer.excesses

    @property
    def _is_patient(self) -> bool:
        """Whether some limit has the request wait rather than refuses it."""
        is_queueing = any(scope.is_queueing for scope in self._key.scopes)
        return is_queueing and self._request.service_tier == "default"

    def _may_wait(self, excesses: Sequence[Excess], seconds: float) -> bool:
        """Return whether each of the limits has it wait, and none for longer than that."""
        return (
            seconds > 0
            and self._request.service_tier == "default"
            and all(excess.scope.is_queueing for excess in excesses)
            and (worst_of(excesses).wait_ms or 0) <= 1000 * seconds
        )

    def _refused(self, excesses: Sequence[Excess]) -> RateLimitError:
        worst = self._as_known(worst_of(excesses))
        is_batch = self._request.service_tier == "batch"
        refusal = refusal_of(worst, self._hold.amount, is_batch=is_batch)
        if not is_batch or refusal.retry_after_seconds is None:  # else the line asks again
            metrics.LIMITED.labels(worst.scope.kind, worst.dimension).inc()
        return refusal

    def _as_known(self, excess: Excess) -> Excess:
        return replace(excess, scope=_as_known(excess.scope, self._key))


def _as_known(scope: LimitScope, key: ApiKey) -> LimitScope:
    """Return a scope as its owner knows it: a key counts under the first whose place it took."""
    return replace(scope, name=key.api_key_id) if scope.kind == "key" else scope
