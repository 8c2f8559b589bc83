"""How fast this worker is, fitted from its own step timings while it serves.

Old steps count less and less, so a change of clocks or neighbours is forgotten within some hundred
steps. Knows numbers only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda_engine import StepCost, StepStats
from pagoda_worker.heartbeat.least_squares import Sums, non_negative_solution
from pagoda_worker.heartbeat.prefill_time import PrefillTime
from pagoda_worker.heartbeat.proposed_cost import ProposedCost

DECAY = 0.995  # per step: a half-life of about 140 steps
MIN_STEPS = 8
REFIT_STEPS = 64  # a fit takes some 200 us, so `add` is content with one this many steps old
MIN_PREFILL_TOKENS = 16
PRIOR_BASE = StepCost().base / StepCost().per_decode  # decodes that take as long as an empty step
PRIOR_PROPOSED = StepCost().per_proposed_token / StepCost().per_decode  # of a decode, likewise
PRIOR_WEIGHT = 1e-6  # of that, beside what was measured: it decides where all steps were as large
MAX_SMALL_SEQUENCES = 2  # of steps that are remembered apart from larger ones
SMALL_DECAY = 0.999  # of those, per larger step: a half-life of about 700 steps
MAX_OUTLIER_RATIO = 8.0  # a step this many times slower than predicted says nothing of the model


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a decode step = base + per_sequence * S + per_context_token * context tokens.

    And per_proposed_token for each proposed token that it verifies.
    """

    base: float = 0.0
    per_sequence: float = 0.0
    per_context_token: float = 0.0
    per_proposed_token: float = 0.0

    def predict(
        self, num_sequences: int, num_context_tokens: int, num_proposed_tokens: int = 0
    ) -> float:
        """Return seconds for one step."""
        return (
            self.base
            + self.per_sequence * num_sequences
            + self.per_context_token * num_context_tokens
            + self.per_proposed_token * num_proposed_tokens
        )


class Rate:
    """A quantity per second: decayed sums, so that large samples weigh more. 0 until measured."""

    def __init__(self, decay: float = 0.98) -> None:
        self._decay = decay
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Count one sample."""
        if amount <= 0 or seconds <= 0:
            return
        self._amount = self._amount * self._decay + amount
        self._seconds = self._seconds * self._decay + seconds

    @property
    def per_second(self) -> float:
        """The rate."""
        return self._amount / self._seconds if self._seconds else 0.0


class SpeedModel:
    """Prefill tokens per second and step time, online.

    Decode-only steps feed a least-squares fit whose coefficients cannot be negative (three of them,
    four where tokens are proposed, so every subset is tried). Small ones are forgotten slowly by
    larger ones: while a large batch runs there are none, and what one takes would be a guess from
    far away. Steps with prefill feed the prefill rate and `PrefillTime`, less what their decodes
    are predicted to cost.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the time of measurements from `clock`, seconds."""
        self._clock = clock
        self._prefilled_at = clock()
        self._small, self._large = Sums(4, DECAY), Sums(4, DECAY)
        self._num_steps = 0
        self._step_time = StepTime()
        self._num_unfitted_steps = 0
        self._prefill = Rate()
        self._prefill_time = PrefillTime()
        self._proposed = ProposedCost()
        # Of decodes lately: how many, the tokens proposed for them, those accepted, and the
        # seconds that a draft model took.
        self._decodes = [0.0] * 4

    def add(self, stats: StepStats) -> None:
        """Learn from one step."""
        # A draft is asked while the device waits, and its time is known: it is no part of a step's.
        draft_seconds = min(stats.draft_seconds, stats.gap_seconds)
        seconds = stats.seconds - draft_seconds
        if not stats.num_sequences or seconds <= 0:
            return
        if stats.num_decode_tokens:
            decodes = (
                stats.num_decode_tokens,
                stats.num_proposed_tokens,
                stats.num_accepted_tokens,
                draft_seconds,
            )
            self._decodes = [
                old * DECAY + new for old, new in zip(self._decodes, decodes, strict=True)
            ]
        if not stats.num_prefill_tokens:
            self._add_decode(stats, seconds)
            return
        num_tokens, num_attended = stats.num_prefill_tokens, stats.num_attended_tokens
        is_large = num_tokens >= MIN_PREFILL_TOKENS
        if not is_large and not self._prefill_time.is_far(num_tokens, num_attended):
            return
        if stats.num_decode_tokens:
            context = stats.num_context_tokens - stats.num_prefill_context_tokens
            of_decodes = self._recent_step_time().predict(
                stats.num_decode_tokens, context, stats.num_proposed_tokens
            )
            seconds -= min(of_decodes, 0.9 * seconds)
        if is_large:
            rate = self._prefill.per_second
            usual = num_tokens / rate if rate else seconds
            # A process that stood still says nothing of its speed.
            self._prefill.add(num_tokens, min(seconds, MAX_OUTLIER_RATIO * usual))
            self._prefilled_at = self._clock()
        num_context = max(num_tokens, stats.num_prefill_context_tokens)
        self._prefill_time.add(num_tokens, num_attended, num_context, seconds)

    def _add_decode(self, stats: StepStats, seconds: float) -> None:
        # Each step weighs in relative error, else the few largest batches decide alone.
        if self._num_steps >= MIN_STEPS:
            recent = self._recent_step_time()
            predicted = recent.predict(*_amounts(stats))
            seconds = min(seconds, MAX_OUTLIER_RATIO * predicted) if predicted else seconds
            if plain := recent.predict(stats.num_sequences, stats.num_context_tokens):
                self._proposed.add(
                    stats.num_sequences,
                    stats.num_proposed_tokens,
                    seconds=seconds,
                    predicted=plain,
                )
        is_small = stats.num_sequences <= MAX_SMALL_SEQUENCES
        features = [amount / seconds for amount in (1.0, *_amounts(stats))]
        if is_small:
            self._small.add(features)
        else:
            self._large.add(features)
            self._small.fade(SMALL_DECAY)
        self._num_steps += 1
        self._num_unfitted_steps += 1

    def _recent_step_time(self) -> StepTime:
        is_old = self._num_unfitted_steps >= REFIT_STEPS or not self._step_time.predict(1, 1)
        return self.step_time if is_old else self._step_time

    @property
    def prefill_tokens_per_second(self) -> float:
        """0 until measured."""
        return self._prefill.per_second

    @property
    def prefill_age_seconds(self) -> float:
        """Since that was measured last."""
        return self._clock() - self._prefilled_at

    @property
    def proposed_per_decode(self) -> float:
        """Tokens that a step verifies for a sequence, on average; 0 until measured."""
        return self._decodes[1] / max(self._decodes[0], 1e-9)

    @property
    def accepted_per_decode(self) -> float:
        """Of them, those that are right, so that the sequence gets so many tokens more."""
        return self._decodes[2] / max(self._decodes[0], 1e-9)

    @property
    def draft_seconds_per_decode(self) -> float:
        """What a draft model takes for a sequence in a step, on average; 0 until measured."""
        return self._decodes[3] / max(self._decodes[0], 1e-9)

    @property
    def step_time(self) -> StepTime:
        """All zero until some steps were measured."""
        if self._num_unfitted_steps and self._num_steps >= MIN_STEPS:
            small, large = self._small, self._large
            fitted = _fit(small.gram + large.gram, small.moment + large.moment)
            self._step_time = StepTime(*fitted)
            self._num_unfitted_steps = 0
        return self._step_time

    @property
    def step_cost(self) -> StepCost | None:
        """What the engine shares its steps by; None until some decodes were measured."""
        time = self.step_time
        if not time.predict(1, 1):
            return None
        gram = self._small.gram + self._large.gram
        num_context_tokens = gram[1, 2] / gram[1, 1]  # of a decode, on average
        per_decode = time.per_sequence + float(time.per_context_token * num_context_tokens)
        per_token, per_attended, per_context = self._prefill_time.coefficients
        guessed = _guessed_per_prefill_token(time.base, per_decode)
        prior = per_decode * PRIOR_PROPOSED
        per_proposed = self._proposed.line(time.per_proposed_token, prior) if gram[3, 3] else prior
        return StepCost(
            base=time.base,
            per_decode=per_decode,
            per_prefill_token=per_token or guessed,
            per_attended_token=per_attended,
            per_context_token=per_context,
            per_proposed_token=per_proposed,
            is_seconds=True,
            proposed_by_batch=self._proposed.by_batch(per_proposed),
        )


def _guessed_per_prefill_token(base: float, per_decode: float) -> float:
    """Return what a token of a prompt takes beside decodes that were measured; above 0.

    Where large steps took no longer than small ones, a decode seems to take nothing.
    """
    prior = StepCost()
    if per_decode:
        return per_decode * prior.per_prefill_token / prior.per_decode
    return base * prior.per_prefill_token / prior.base


def _amounts(stats: StepStats) -> tuple[int, int, int]:
    return stats.num_sequences, stats.num_context_tokens, stats.num_proposed_tokens


def _fit(gram: npt.NDArray[np.float64], moment: npt.NDArray[np.float64]) -> list[float]:
    """Return the non-negative least-squares solution of ``gram x = moment``.

    Of as many coefficients as anything was measured of: the last one's amount may always be 0.
    """
    num = len(moment) if gram[-1, -1] else len(moment) - 1
    priors = np.array([[1.0, -PRIOR_BASE, 0.0, 0.0], [0.0, PRIOR_PROPOSED, 0.0, -1.0]])[:, :num]
    gram, moment = gram[:num, :num], moment[:num]
    gram = gram + PRIOR_WEIGHT * gram[0, 0] * priors[: num - 2].T @ priors[: num - 2]
    return non_negative_solution(gram, moment)
