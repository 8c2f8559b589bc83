"""How many proposed tokens of whom a step should verify: as long as each saves more than it costs.

Knows sequences, their proposers and what steps cost. Knows nothing of blocks, shares or budgets.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from pagoda_engine.errors import TokenMaskError
from pagoda_engine.scheduler.proposing.drafts import LEAST_OVERLAPPED, MARGIN, Drafts
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


class Speculator:
    """Chooses proposals for the decodes of one step.

    A token that a step verifies makes it longer by what `StepCost.proposed` says. If it
    is right, its sequence needs one step less: that saves a decode, and its part of what a step
    takes anyway. So one row alone has many proposals verified, and one of a large batch few that
    are nearly certain.
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
        if self._drafts is not None:
            self._drafts.drop(sequence)

    def check_invariants(self, running: SequenceOf[Sequence]) -> None:
        """Raise AssertionError if anything is kept of a sequence that does not run."""
        if self._drafts is not None:
            self._drafts.check_invariants(running)

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
                    proposals[sequence] = _that_may_come(sequence, proposals[sequence])
                if not proposals[sequence]:
                    del proposals[sequence]
        return proposals

    def _look_up(
        self, decodes: SequenceOf[Sequence], cost: StepCost
    ) -> dict[Sequence, SequenceOf[int]]:
        """Return what is worth being verified of what followed the same tokens before."""
        num_decodes = max(1, len(decodes))
        saved = cost.base / num_decodes + cost.per_decode
        least = MARGIN * cost.proposed(num_decodes) / saved if saved else 1.0
        if least >= 1.0:
            return {}
        proposals = {}
        for sequence in decodes:
            guesses = sequence.guesses
            if guesses is None:
                if not sequence.can_speculate:
                    continue
                guesses = self._start(sequence)
            elif guesses.num_rests:
                guesses.num_rests -= 1
                continue
            if tokens := self._of(sequence, guesses, max(least, 1e-9)):
                proposals[sequence] = tokens
            guesses.rest(is_useful=bool(tokens) or sequence.waits_for_tokens)
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

    def _of(self, sequence: Sequence, guesses: Guesses, least: float) -> SequenceOf[int]:
        # One token more is sampled, which may be the last.
        room = sequence.max_num_tokens - sequence.num_tokens - 1
        max_tokens = min(self._max_tokens, room)
        found = guesses.look(max_tokens, counts_none=sequence.waits_for_tokens)
        if sequence.request.token_mask is not None:  # it waits for its tokens anyway
            must_come = _forced_with_logprobs(sequence)[:max_tokens]
            return _that_may_come(sequence, must_come or found[: guesses.num_likely(least)])
        if self._overlaps:
            is_worth_it = guesses.num_expected(self._max_tokens) >= LEAST_OVERLAPPED
            sequence.waits_for_tokens = is_worth_it
            if not is_worth_it or sequence.num_unread_tokens:
                return ()
        return found[: guesses.num_likely(least)]


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
