"""Whom a draft model proposes for in a step, and how many tokens: as long as that saves time.

Knows sequences, what steps and the draft's forwards take, and how often the draft was right. Knows
no tensors, and nothing of blocks of the target or of queues.
"""

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.scheduler.limits import (
    ACCEPTANCE,
    DRAFT,
    END_OF_OUTPUT,
    ROOM,
    SETTING,
    count,
)
from pagoda_engine.scheduler.proposing.drafter import Drafter
from pagoda_engine.scheduler.proposing.gain import LEAST_OVERLAPPED, MARGIN, saving
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.speculation import Acceptance

MAX_FIRST_TOKENS = 32
"""A sequence that lacks no more of the draft's KV computes it as it drafts its first token."""
CATCH_UP_SHARE = 0.25
"""Of a step's time: what the draft may take in it to compute prompts."""
MIN_CHUNK = 16
"""Tokens of such a prompt at a time at least, unless fewer are missing."""
HORIZON_TOKENS = 64
"""Tokens that a sequence is thought to have still before it, if its limit lets it."""
PROBE_SHARE = 0.0025
"""Of all time: what may be lost where the draft seems to pay, and as much again to find out."""
CREDIT_STEPS = 8.0
"""Steps' time that may be lost at once, before it is not asked until that was made up for."""
NUM_PROBED = 2
"""Tokens that are drafted to find out."""
NUM_RESTS = 127
"""Steps for which nobody is asked about once nothing could be gained; but if others decode."""
FIRST_ACCEPTANCE = 0.7
"""Share of right tokens that is expected of a draft until something is known: somebody chose it."""
POOLED_RATE = 0.03
"""Weight of the latest drafted token in the share of right ones that is expected of a newcomer."""


class _Drafted(Acceptance):
    """How right the draft is about one sequence, and what it said last.

    Attributes:
        expected: tokens that it said last; empty once they were compared.
        num_seen: tokens that the sequence had then.
        saved: seconds that each of them saves if it is right.
    """

    __slots__ = ("expected", "num_seen", "saved")

    def __init__(self, acceptance: float) -> None:
        super().__init__(acceptance)
        self.expected: SequenceOf[int] = ()
        self.num_seen = 0
        self.saved = 0.0


@dataclass(slots=True)
class _Candidate:
    """A sequence that could be drafted.

    Attributes:
        sequence: all of its tokens are known.
        drafted: how right the draft is about it.
        num_worth: tokens of which each is expected to save more than it costs.
        gain: that they save, in seconds; what a forward takes that has no rows is not in it.
        given_up: of that, what is lost of another proposer's gain.
    """

    sequence: Sequence
    drafted: _Drafted
    num_worth: int
    gain: float
    given_up: float


class Drafts:
    """Adds what a draft model proposes to what others propose for the decodes of a step.

    A drafted token costs its row in the draft's forward and in the step that verifies it, and a
    part of the draft's forward as a whole, which all drafted sequences of the step share. It saves
    what any proposed token saves (see `Speculator`). As many tokens are drafted as this is worth
    by what is known of each sequence, and nobody if it is worth nothing: a draft that is switched
    off is asked about now and then, within a quarter percent of the time, and so switched on again.
    What that costs and what it saved is counted, whatever was expected: who has lost more than may
    be lost is not asked, so a draft that only seems to pay costs no more than that share of time.
    A sequence is drafted once its KV is there: the draft computes it in chunks beside steps, no
    more than a quarter of their time, if what the sequence has before it is worth that.
    """

    def __init__(self, drafter: Drafter, max_tokens: int, *, overlaps: bool) -> None:
        """Begin with nobody.

        Args:
            drafter: the model; this object alone uses it.
            max_tokens: drafted for a sequence in one step at most.
            overlaps: see `Speculator`.
        """
        self._drafter = drafter
        self._max_tokens = max_tokens
        self._overlaps = overlaps
        self._pooled = Acceptance(FIRST_ACCEPTANCE)
        self._known: dict[Sequence, _Drafted] = {}
        self._asked: list[Sequence] = []  # whose drafted tokens have not been compared yet
        self._credit = math.inf  # seconds that may be lost; see `_may_lose`
        self._probe_credit = 0.0  # as many again, saved up to find out
        self._allowance = 0.0  # seconds that the draft may compute prompts for
        self._is_off = False  # for `_num_rests` steps, or until the number of decodes changes
        self._num_rests = 0
        self._num_decodes = 0
        self._num_steps = 0  # since it was last looked at what may be gained
        self._saved = 0.0  # seconds, by a right token of this step
        self._pays = False

    def rest(self, num_decodes: int, *, prolong: bool = False) -> bool:
        """Tell whether nobody is drafted in a step of so many decodes, and count it if so.

        Args:
            num_decodes: of the step.
            prolong: who rests goes on, since looking now would be for this alone.
        """
        if self._asked:
            self._compare()
        if not self._is_off or num_decodes != self._num_decodes:
            return False
        if self._num_rests == 0 and not prolong:
            return False
        self._num_rests -= self._num_rests > 0
        self._num_steps += 1
        return True

    def add_to(
        self,
        proposals: dict[Sequence, SequenceOf[int]],
        decodes: SequenceOf[Sequence],
        cost: StepCost,
        *,
        room: Callable[[], int],
        unclaimed: float,
    ) -> list[Sequence]:
        """Draft for the decodes of a step, in place of others' proposals where it is worth more.

        Args:
            proposals: of others; gets those of the draft.
            decodes: all that could be in the step.
            cost: of steps, in seconds.
            room: says how many tokens may be verified in all.
            unclaimed: seconds that the draft and its tokens may take.

        Returns:
            Those for whom the draft proposes.
        """
        if self.rest(len(decodes)):
            return []
        self._num_steps += 1
        step = cost.of(num_decodes=len(decodes), num_prefill_tokens=0)
        self._credit += PROBE_SHARE * step * self._num_steps
        self._probe_credit += 0.0 if self._pays else PROBE_SHARE * step * self._num_steps
        self._is_off, self._num_decodes, self._num_steps = False, len(decodes), 0
        num_rows = room()
        if num_rows < 1:
            return []
        self._credit = min(self._credit, self._may_lose(step, cost))
        candidates, num_tokens = self._worth(proposals, decodes, cost, len(decodes))
        num_proposing = len({c.sequence for c in candidates if _is_worth_it(c)} | {*proposals})
        if 0 < num_proposing < len(decodes):  # else less saved changes nothing
            candidates, num_tokens = self._worth(proposals, decodes, cost, num_proposing)
        self._saved = saving(len(decodes), max(1, num_proposing), cost)
        self._pays = num_tokens > 0 and self._credit > 0.0
        for candidate in candidates if self._overlaps else ():
            self._let_wait(candidate)
        allowed = min(unclaimed, CATCH_UP_SHARE * step)
        worthy = [c for c in candidates if self._pays and _is_worth_it(c)]
        ready = [c for c in worthy if self._can_draft(c.sequence, num_tokens)]
        _note_limits(candidates, ready, num_tokens, self._max_tokens)
        num_best = num_tokens
        num_tokens, unclaimed = self._within(ready, num_tokens, cost, num_rows, unclaimed)
        for candidate in ready if num_tokens < num_best else ():
            count(candidate.sequence.proposal_limits, ROOM)
        late = [c for c in worthy if c not in ready] if len(ready) < len(worthy) else []
        catches_up = self._catch_up(late, min(unclaimed, CATCH_UP_SHARE * step))
        if not ready and not catches_up:
            self._pays = False
            self._is_off, self._num_rests = True, NUM_RESTS
            before = self._credit
            drafted = self._probe(proposals, candidates, cost, allowed)
            self._probe_credit -= before - self._credit
            self._credit = before  # to find out has a share of its own
            return drafted
        return self._draft(proposals, ready, num_tokens, cost)

    @property
    def seconds(self) -> float:
        """That the draft has taken in all."""
        return self._drafter.seconds

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, which leaves the steps or must not speculate any more."""
        if self._known.pop(sequence, None) is not None:
            self._drafter.drop(sequence)

    def check_invariants(self, running: SequenceOf[Sequence]) -> None:
        """Raise AssertionError if anything is kept of a sequence that does not run."""
        assert self._known.keys() <= {*running}, "a draft of a sequence that does not run"
        self._drafter.check_invariants([*self._known])

    def _may_lose(self, step: float, cost: StepCost) -> float:
        """Return what may be lost at once: some steps' time, and at least what finds out."""
        return max(CREDIT_STEPS * step, 2 * self._probe_seconds(cost))

    def _probe_seconds(self, cost: StepCost) -> float:
        """Return what it takes to draft and verify as much as finds out, without catching up."""
        return NUM_PROBED * (self._drafter.time.of(1) + cost.proposed(self._num_decodes))

    def _compare(self) -> None:
        """Learn how right what was drafted is, of those whose tokens have come since."""
        waiting = []
        for sequence in self._asked:
            drafted = self._known.get(sequence)
            if drafted is None:
                continue
            if len(sequence.token_ids) == drafted.num_seen:
                waiting.append(sequence)
                continue
            came = sequence.token_ids[drafted.num_seen :]
            drafted.compare(drafted.expected, came)
            self._pooled.compare(drafted.expected, came, POOLED_RATE)
            self._credit += drafted.saved * _num_right(drafted.expected, came)
            drafted.expected = ()
        self._asked = waiting

    def _may_be_drafted(
        self, sequence: Sequence, proposals: dict[Sequence, SequenceOf[int]]
    ) -> bool:
        if not sequence.can_speculate:
            return False
        # What a grammar forces and was proposed for its logits' sake is always right.
        request = sequence.request
        is_forced = request.token_mask is not None and request.sampling.num_logprobs is not None
        return not (is_forced and sequence in proposals)

    def _let_wait(self, candidate: _Candidate) -> None:
        """Let a sequence sit out steps to be drafted, or for what is looked up, or none."""
        sequence, guesses = candidate.sequence, candidate.sequence.guesses
        is_drafted = self._pays and _is_worth_it(candidate)
        sequence.waits_for_tokens = (
            is_drafted and self._drafter.num_missing(sequence) <= MAX_FIRST_TOKENS
        ) or (guesses is not None and guesses.num_expected(self._max_tokens) >= LEAST_OVERLAPPED)

    def _worth(
        self,
        proposals: dict[Sequence, SequenceOf[int]],
        decodes: SequenceOf[Sequence],
        cost: StepCost,
        num_proposing: int,
    ) -> tuple[list[_Candidate], int]:
        """Return who could be drafted and how many tokens of each, if so many propose."""
        saved = saving(len(decodes), num_proposing, cost) / MARGIN
        candidates = [
            candidate
            for sequence in decodes
            if self._may_be_drafted(sequence, proposals)
            and (candidate := self._candidate(sequence, proposals, cost, saved))
        ]
        return candidates, self._num_worth(candidates, cost, saved)

    def _candidate(
        self,
        sequence: Sequence,
        proposals: dict[Sequence, SequenceOf[int]],
        cost: StepCost,
        saved: float,
    ) -> _Candidate | None:
        most = min(self._max_tokens, sequence.max_num_tokens - sequence.num_tokens - 1)
        if most < 1:
            return None
        drafted = self._known.get(sequence)
        if drafted is None:
            drafted = self._known[sequence] = _Drafted(self._pooled.acceptance)
        per_proposed, share = cost.proposed(self._num_decodes), drafted.acceptance
        row = per_proposed + self._drafter.time.per_token
        gain, worth, num_worth = 0.0, share * saved - row, 0
        if self._overlaps and drafted.num_expected(most) < LEAST_OVERLAPPED:
            worth = 0.0
        while worth > 0.0 and num_worth < most:
            gain += worth
            num_worth += 1
            worth = share ** (num_worth + 1) * saved - row
        given_up = 0.0
        if others := proposals.get(sequence):
            assert sequence.guesses is not None
            num_right = sequence.guesses.num_expected(len(others))
            given_up = max(0.0, num_right * saved - len(others) * per_proposed)
        return _Candidate(sequence, drafted, num_worth, gain, given_up)

    def _num_worth(self, candidates: SequenceOf[_Candidate], cost: StepCost, saved: float) -> int:
        """Return how many tokens to draft at most of each sequence, so that the step gains most."""
        worthy = [c for c in candidates if _is_worth_it(c)]
        if not worthy:
            return 0
        time = self._drafter.time
        row = cost.proposed(self._num_decodes) + time.per_token
        total, best, num_best = -sum(c.given_up for c in worthy), 0.0, 0
        for num in range(1, max(c.num_worth for c in worthy) + 1):
            total -= time.base
            total += sum(
                c.drafted.acceptance**num * saved - row for c in worthy if c.num_worth >= num
            )
            if total > best:
                best, num_best = total, num
        return num_best

    def _can_draft(self, sequence: Sequence, num_tokens: int) -> bool:
        drafter = self._drafter
        if sequence.num_unread_tokens or drafter.num_missing(sequence) > MAX_FIRST_TOKENS:
            return False
        return drafter.has_room(sequence, num_tokens)

    def _within(
        self,
        ready: SequenceOf[_Candidate],
        num_tokens: int,
        cost: StepCost,
        room: int,
        unclaimed: float,
    ) -> tuple[int, float]:
        """Return how many tokens of each fit the room and the time, and the time that is left."""
        time = self._drafter.time
        while num_tokens and ready:
            num_rows = sum(min(c.num_worth, num_tokens) for c in ready)
            takes = num_tokens * time.base + num_rows * (
                time.per_token + cost.proposed(self._num_decodes)
            )
            if num_rows <= room and takes <= unclaimed:
                return num_tokens, unclaimed - takes
            num_tokens -= 1
        return 0, unclaimed

    def _draft(
        self,
        proposals: dict[Sequence, SequenceOf[int]],
        ready: SequenceOf[_Candidate],
        num_tokens: int,
        cost: StepCost,
    ) -> list[Sequence]:
        """Draft so many tokens of each, or as many as it is worth."""
        if not ready or not num_tokens:
            return []
        before = self._drafter.seconds
        wanted = [(c.sequence, min(c.num_worth, num_tokens)) for c in ready]
        wanted.sort(key=lambda pair: pair[1], reverse=True)
        for (sequence, _), tokens in zip(wanted, self._drafter.draft(wanted), strict=True):
            drafted = self._known[sequence]
            drafted.expected, drafted.num_seen = tokens, len(sequence.token_ids)
            drafted.saved = self._saved
            proposals[sequence] = tokens
        num_rows = sum(num for _, num in wanted)
        self._credit -= self._drafter.seconds - before + num_rows * cost.proposed(self._num_decodes)
        self._asked.extend(sequence for sequence, _ in wanted)
        return [sequence for sequence, _ in wanted]

    def _catch_up(self, late: list[_Candidate], allowed: float) -> bool:
        """Let the draft compute a part of one sequence's tokens, within the time that there is.

        Returns:
            Whether that is worth its time for any of them, if not in this step.
        """
        drafter, time = self._drafter, self._drafter.time
        # Where a chunk takes more than a step allows there is one every few steps.
        most = max(allowed, time.of(MIN_CHUNK))
        self._allowance = min(self._allowance + allowed, most) if late else 0.0
        missing = sorted((drafter.num_missing(c.sequence), i) for i, c in enumerate(late))
        is_worth_it = False
        for num_missing, i in missing:
            candidate = late[i]
            sequence, drafted = candidate.sequence, candidate.drafted
            num_tokens = min(HORIZON_TOKENS, sequence.max_num_tokens - sequence.num_tokens)
            num_steps = num_tokens / (1.0 + drafted.num_expected(candidate.num_worth))
            if time.of(num_missing) > (candidate.gain - candidate.given_up) * num_steps:
                continue
            is_worth_it = True
            if self._compute(sequence, num_missing, self._allowance):
                self._allowance = 0.0
                break
        return is_worth_it

    def _compute(self, sequence: Sequence, num_missing: int, seconds: float) -> bool:
        """Let the draft compute some of a sequence's tokens, if it has the time and the blocks."""
        # The last one's logits will be needed.
        num_tokens = int(min(num_missing - 1, self._drafter.time.tokens_within(seconds)))
        if num_tokens < max(1, min(MIN_CHUNK, num_missing - 1)):
            return False
        if not self._drafter.has_room(sequence, 1):
            return False
        before = self._drafter.seconds
        self._drafter.catch_up(sequence, num_tokens)
        self._credit -= self._drafter.seconds - before
        return True

    def _probe(
        self,
        proposals: dict[Sequence, SequenceOf[int]],
        candidates: SequenceOf[_Candidate],
        cost: StepCost,
        allowed: float,
    ) -> list[Sequence]:
        """Find out how right the draft is about one sequence, if that takes little of all time."""
        time, drafter = self._drafter.time, self._drafter
        takes = self._probe_seconds(cost)
        if self._probe_credit < takes:
            return []
        alone = [c for c in candidates if not proposals.get(c.sequence)]
        found = min(
            alone,
            key=lambda c: (c.sequence.num_unread_tokens, drafter.num_missing(c.sequence)),
            default=None,
        )
        if found is None:
            return []
        sequence = found.sequence
        num_missing = drafter.num_missing(sequence)
        if takes + time.per_token * num_missing > self._probe_credit:
            return []
        if num_missing > MAX_FIRST_TOKENS:
            # In smaller chunks what a forward takes that has no tokens would be most of it.
            self._compute(sequence, num_missing, max(allowed, time.of(MIN_CHUNK), 2 * time.base))
            self._is_off = False  # what was begun goes on, or new tokens would come as fast
        elif sequence.num_unread_tokens:
            sequence.waits_for_tokens = True  # so its token is known in the step after the next
            self._credit -= self._saved
            self._is_off = False
        drafted: list[Sequence] = []
        if self._can_draft(sequence, NUM_PROBED):
            most = min(NUM_PROBED, sequence.max_num_tokens - sequence.num_tokens - 1)
            found.num_worth = most
            drafted = self._draft(proposals, [found], most, cost)
        return drafted


def _note_limits(
    candidates: SequenceOf[_Candidate],
    ready: SequenceOf[_Candidate],
    num_tokens: int,
    max_tokens: int,
) -> None:
    """Count why so many tokens are drafted of those who are ready, and none of the others."""
    drafted = {candidate.sequence for candidate in ready}
    for candidate in candidates:
        sequence, num_worth = candidate.sequence, candidate.num_worth
        limit = DRAFT
        if sequence in drafted and num_worth <= num_tokens:
            limit = SETTING if num_worth == max_tokens else ACCEPTANCE
            if num_worth == sequence.max_num_tokens - sequence.num_tokens - 1:
                limit = END_OF_OUTPUT
        count(sequence.proposal_limits, limit)


def _is_worth_it(candidate: _Candidate) -> bool:
    """Tell whether the draft gains more than the other proposer it takes the place of."""
    return candidate.gain > candidate.given_up


def _num_right(expected: SequenceOf[int], came: SequenceOf[int]) -> int:
    """Return how many tokens came as expected before one that did not."""
    pairs = zip(expected, came, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
