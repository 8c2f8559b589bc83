"""Beam search by log probabilities: which outputs are followed, which have ended, when it is over.

The rules are those of transformers' `generate` with ``do_sample=False``. Knows tokens and log
probabilities. Knows nothing of sequences, blocks or tensors.
"""

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import NamedTuple

from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_engine.sampling_params import BeamSearchParams


class Beam(NamedTuple):
    """An output that is followed.

    Attributes:
        parent: which of the beams before it goes on from.
        token_ids: of the output, all of them.
        logprobs: of its tokens, where they are kept.
        cumulative_logprob: of its tokens together.
    """

    parent: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output that has ended.

    Attributes:
        token_ids: of it, the stop token included.
        logprobs: of its tokens, if they were asked for.
        cumulative_logprob: of its tokens together.
        score: that, divided by the length to the power of the length penalty.
        matched_stop_token_id: what ended it; None: its length.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    cumulative_logprob: float
    score: float
    matched_stop_token_id: int | None


class BeamSearch:
    """One search, from the prompt's logits to the last token.

    Attributes:
        beams: that are followed, the likeliest first; all of one length.
        hypotheses: the best that have ended, `width` at most, the best first.
        is_over: no token can change the hypotheses; there are `width` then.
    """

    def __init__(
        self,
        params: BeamSearchParams,
        *,
        max_tokens: int,
        min_tokens: int,
        stop_token_ids: Collection[int],
        num_logprobs: int | None,
    ) -> None:
        """Begin with an empty output.

        Args:
            params: of the search.
            max_tokens: of each output; one as long ends there.
            min_tokens: no stop token is taken before this many.
            stop_token_ids: end an output.
            num_logprobs: alternatives to keep for each token; None: no log probabilities at all.
        """
        self._params = params
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_logprobs = num_logprobs
        self.restart()

    def restart(self) -> None:
        """Begin again."""
        self.beams = [Beam(0, (), (), 0.0)]
        self.hypotheses: list[Hypothesis] = []
        self.is_over = False

    @property
    def width(self) -> int:
        """How many outputs are followed, from the second token on."""
        return self._params.width

    @property
    def num_candidates(self) -> int:
        """The likeliest tokens that `advance` must know of each beam.

        Among them are `width` that end nothing, so that as many outputs can be followed.
        """
        return self.width + len(self._stop_token_ids)

    @property
    def length(self) -> int:
        """Tokens of each output that is followed."""
        return len(self.beams[0].token_ids)

    def advance(self, tops: SequenceOf[SequenceOf[tuple[int, float]]]) -> None:
        """Take one more token for each output.

        Args:
            tops: of each of `beams` (token id, log probability) of its likeliest next tokens,
                `num_candidates` of them at least, the likeliest first.
        """
        length = self.length + 1
        can_stop, must_end = length > self._min_tokens, length >= self._max_tokens
        candidates = [
            (beam.cumulative_logprob + logprob, parent, token_id, logprob)
            for parent, (beam, top) in enumerate(zip(self.beams, tops, strict=True))
            for token_id, logprob in top[: self.num_candidates]
            if can_stop or token_id not in self._stop_token_ids
        ]
        candidates.sort(key=itemgetter(0), reverse=True)
        beams = list[Beam]()
        for rank, (cumulative, parent, token_id, logprob) in enumerate(candidates):
            is_stop = token_id in self._stop_token_ids
            has_ended = is_stop or must_end
            if has_ended and rank >= self.width:
                continue  # what ends counts among the likeliest only
            before = self.beams[parent]
            logprobs = before.logprobs
            if self._num_logprobs is not None:
                best = tuple(tops[parent][: self._num_logprobs])
                logprobs = (*logprobs, TokenLogprobs(token_id, logprob, best))
            token_ids = (*before.token_ids, token_id)
            if has_ended:
                score = cumulative / length**self._params.length_penalty
                stop_id = token_id if is_stop else None
                self.hypotheses.append(Hypothesis(token_ids, logprobs, cumulative, score, stop_id))
            elif len(beams) < self.width:
                beams.append(Beam(parent, token_ids, logprobs, cumulative))
        self.hypotheses.sort(key=attrgetter("score"), reverse=True)
        del self.hypotheses[self.width :]
        self.is_over = must_end or not self._can_improve(beams, length)
        if not self.is_over:
            self.beams = beams

    def _can_improve(self, beams: SequenceOf[Beam], length: int) -> bool:
        """Tell whether the hypotheses may still change, as far as `early_stopping` looks ahead."""
        params = self._params
        if len(self.hypotheses) < self.width:
            return True
        if params.early_stopping is True or self.width == 1:  # a single beam is greedy search
            return False
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self._max_tokens
        best: float = beams[0].cumulative_logprob / length**params.length_penalty
        return best > self.hypotheses[-1].score
