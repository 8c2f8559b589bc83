"""How many proposed tokens of whom a step should verify: as long as each saves more than it costs.

Knows sequences, their proposers and what steps cost. Knows nothing of blocks, shares or budgets.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from pagoda_engine.errors import TokenMaskError
from pagoda_engine.scheduler.limits import (
    ACCEPTANCE,
    END_OF_OUTPUT,
    GRAMMAR,
    LOAD,
    NOTHING_FOUND,
    SETTING,
    count,
)
from pagoda_engine.scheduler.proposing.drafts import Drafts
from pagoda_engine.scheduler.proposing.gain import LEAST_OVERLAPPED, least_probability
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.speculation import (
    Guesses,
    MakeProposer,
    NgramProposer,
    OutputsKey,
    Proposer,
    SuffixProposer,
    TenantOutputs,
)
from pagoda_engine.speculation.guesses import MAX_RESTS, MAX_RESTS_ALONE


class Speculator:
    """Chooses proposals for the decodes of one step.

    A token that a step verifies makes it longer by what `StepCost.proposed` says. If it
    is right, its sequence needs one step less: what that saves says `saving`. So one row alone has
    many proposals verified, and one of a large batch few that are nearly certain.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        overlaps: bool,
        outputs: TenantOutputs | None = None,
        make_proposer: MakeProposer = NgramProposer,
        drafts: Drafts | None = None,
    ) -> None:
        """Speculate.

        Args:
            max_tokens: proposed for a sequence in one step at most.
            overlaps: a step is launched before the tokens of the one before are read. Proposals
                follow known tokens, so a sequence that has any sits out every other step.
            outputs: learns what ends, and is where a sequence's proposals come from beside itself;
                None: from itself alone.
            make_proposer: of each sequence, where there are no `outputs`.
            drafts: of a draft model, which proposes where that gains more; None: there is none.
        """
        self._max_tokens = max_tokens
        self._overlaps = overlaps
        self._outputs = outputs
        self._make_proposer = make_proposer
        self._drafts = drafts
        self.draft_seconds = 0.0
        self._step = 0
        self._looks_at = 0  # the first step of these decodes in which anybody looks
        self._num_decodes = 0
        self._latest: Sequence | None = None
        self._is_loaded = False
        self._noted_at = -MAX_RESTS

    def learn(self, sequence: Sequence) -> None:
        """Remember for its tenant what a sequence said that has ended, however it did.

        Not of a beam search: its tokens are those of a beam, which may not be what it found.
        """
        request = sequence.request
        if self._outputs is None or request.prefill_only or sequence.beams is not None:
            return
        self._outputs.add(_key(sequence), request.prompt_token_ids, sequence.output_token_ids)

    def forget(self, sequence: Sequence) -> None:
        """Drop what a draft keeps for a sequence that leaves the steps, or must not speculate."""
        has_decoded = len(sequence.token_ids) > sequence.prefill_end + 1
        if self._is_loaded and has_decoded and not sequence.proposal_limits:
            self._note_load([sequence])
        if self._drafts is not None:
            self._drafts.drop(sequence)

    def check_invariants(self, running: SequenceOf[Sequence]) -> None:
        """Raise AssertionError if anything is kept of a sequence that does not run."""
        if self._drafts is not None:
            self._drafts.check_invariants(running)

    def rest(self, decodes: SequenceOf[Sequence]) -> bool:
        """Tell whether nobody is to be asked in a step; every step is told of its decodes once.

        Most steps of text that does not repeat itself are so, and cost this comparison. Who takes
        another one's place may be asked up to 31 steps late.
        """
        self._step += 1
        latest = decodes[-1] if decodes else None
        if len(decodes) != self._num_decodes or latest is not self._latest:
            self._num_decodes, self._latest, self._looks_at = len(decodes), latest, 0
        if self._step < self._looks_at:
            return self._drafts is None or self._drafts.rest(len(decodes), prolong=True)
        return False

    def note_load(self, decodes: SequenceOf[Sequence]) -> None:
        """Note that none of these decodes can have a token verified, or should: they are many."""
        self._is_loaded = True
        if self._step > self._noted_at + MAX_RESTS:  # as often as who rests looks
            self._noted_at = self._step
            self._note_load(decodes)

    def propose(
        self,
        decodes: SequenceOf[Sequence],
        cost: StepCost,
        *,
        room: Callable[[], int],
        unclaimed: float = math.inf,
    ) -> dict[Sequence, SequenceOf[int]]:
        """Return the tokens that are worth being verified, for those that have any.

        Args:
            decodes: all that could be in the step.
            cost: of steps.
            room: says how many tokens may be verified in all. Asked where a draft is; who proposes
                without a forward proposes more, of which the first ones are taken.
            unclaimed: time that a draft may take.
        """
        proposals = self._look_up(decodes, cost)
        if self._drafts is not None and cost.is_seconds:
            before = self._drafts.seconds
            drafted = self._drafts.add_to(proposals, decodes, cost, room=room, unclaimed=unclaimed)
            self.draft_seconds = self._drafts.seconds - before
            for sequence in drafted:
                if sequence.request.token_mask is not None:
                    num_drafted = len(proposals[sequence])
                    proposals[sequence] = _that_may_come(sequence, proposals[sequence])
                    if len(proposals[sequence]) < num_drafted:
                        count(sequence.proposal_limits, GRAMMAR)
                if not proposals[sequence]:
                    del proposals[sequence]
        return proposals

    def _look_up(
        self, decodes: SequenceOf[Sequence], cost: StepCost
    ) -> dict[Sequence, SequenceOf[int]]:
        """Return what is worth being verified of what followed the same tokens before."""
        num_decodes = len(decodes)
        least = least_probability(num_decodes, num_decodes, cost)
        step, most_rests = self._step, MAX_RESTS if num_decodes > 1 else MAX_RESTS_ALONE
        self._looks_at = step + 1 + most_rests
        if least >= 1.0:
            self.note_load(decodes)
            return {}
        self._is_loaded = False
        looks: list[tuple[Sequence, Guesses, SequenceOf[int]]] = []
        num_proposing = 0
        for sequence in decodes:
            guesses = sequence.guesses
            if guesses is None:
                if not sequence.can_speculate:
                    continue
                guesses = self._start(sequence)
            if guesses.looks_at <= step:
                most, counts_none = self._most(sequence), sequence.waits_for_tokens
                looks.append((sequence, guesses, guesses.look(most, counts_none=counts_none)))
            else:
                self._looks_at = min(self._looks_at, guesses.looks_at)
            num_proposing += sequence.waits_for_tokens or guesses.is_likely(least)
        least = least_probability(num_decodes, max(1, num_proposing), cost)
        proposals = {}
        for sequence, guesses, found in looks:
            if tokens := self._of(sequence, guesses, found, least):
                proposals[sequence] = tokens
            is_useful = bool(tokens) or sequence.waits_for_tokens
            guesses.rest(step, is_useful=is_useful, most=most_rests)
            self._looks_at = min(self._looks_at, guesses.looks_at)
        return proposals

    def _start(self, sequence: Sequence) -> Guesses:
        token_ids, most = sequence.token_ids, sequence.max_num_tokens
        proposer: Proposer
        if self._outputs is not None:
            proposer = SuffixProposer(token_ids, most, self._outputs, _key(sequence))
        else:
            proposer = self._make_proposer(token_ids, most)
        sequence.guesses = Guesses(sequence.token_ids, proposer)
        return sequence.guesses

    def _most(self, sequence: Sequence) -> int:
        # One token more is sampled, which may be the last.
        return min(self._max_tokens, sequence.max_num_tokens - sequence.num_tokens - 1)

    def _of(
        self, sequence: Sequence, guesses: Guesses, found: SequenceOf[int], least: float
    ) -> SequenceOf[int]:
        """Return as many of what is found as are right with this probability, and may come."""
        max_tokens = self._most(sequence)
        wanted, limits = found[: guesses.num_likely(least)], sequence.proposal_limits
        is_masked = sequence.request.token_mask is not None
        if self._overlaps and not is_masked:  # else it waits for its tokens anyway
            is_worth_it = guesses.num_expected(self._max_tokens) >= LEAST_OVERLAPPED
            sequence.waits_for_tokens = is_worth_it
            if is_worth_it and sequence.num_unread_tokens:
                return ()
            wanted = wanted if is_worth_it else ()
        if len(wanted) < len(found):
            count(limits, ACCEPTANCE if least < 1.0 else LOAD)
        elif len(found) < max_tokens:
            count(limits, NOTHING_FOUND)
        else:
            count(limits, END_OF_OUTPUT if max_tokens < self._max_tokens else SETTING)
        if not is_masked:
            return wanted
        must_come = _forced_with_logprobs(sequence)[:max_tokens]
        may_come = _that_may_come(sequence, must_come or wanted)
        if must_come or len(may_come) < len(wanted):
            count(limits, GRAMMAR)
        return may_come

    @staticmethod
    def _note_load(decodes: SequenceOf[Sequence]) -> None:
        for sequence in decodes:
            if sequence.can_speculate:
                count(sequence.proposal_limits, LOAD)


def _forced_with_logprobs(sequence: Sequence) -> SequenceOf[int]:
    """Return what a grammar forces next where each token needs its logits, so is not output yet."""
    mask = sequence.request.token_mask
    if mask is None or sequence.request.sampling.num_logprobs is None:
        return ()
    return mask.forced(sequence.output_token_ids)


def _that_may_come(sequence: Sequence, proposed: SequenceOf[int]) -> SequenceOf[int]:
    """Return as many of the proposed tokens as the sequence's grammar lets follow."""
    mask = sequence.request.token_mask
    if mask is None or not proposed:
        return ()
    try:
        sequence.masks_ahead = mask.ahead(sequence.output_token_ids, proposed)
    except TokenMaskError:  # which the step's own row says again, and ends the sequence
        return ()
    return proposed[: len(sequence.masks_ahead) - 1]


def _key(sequence: Sequence) -> OutputsKey:
    return OutputsKey(sequence.request.tenant, sequence.request.cache_root)
