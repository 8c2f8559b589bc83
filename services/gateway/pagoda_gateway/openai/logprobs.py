"""Log probabilities in the two shapes that OpenAI answers with."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pagoda.rpc.v1.generate_pb2 import PositionLogprobs, TokenLogprob
from pagoda_gateway.text.detokenizer import Detokenizer
from pagoda_gateway.text.tokenizer import ModelTokenizer

LEAST = -9999.0  # JSON has no infinity


class LogprobFormat:
    """Formats positions of one sequence; keeps the text offset between calls."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        tokens_as_ids: bool,
        offset: int = 0,
        new_detokenizer: Callable[[], Detokenizer] | None = None,
    ) -> None:
        """Prepare to name tokens.

        Args:
            tokenizer: the model's.
            tokens_as_ids: they are named by their ids.
            offset: where the output begins in the answer's text.
            new_detokenizer: makes what turned the output into text; only `completion` needs it.
        """
        self._tokenizer = tokenizer
        self._tokens_as_ids = tokens_as_ids
        self._offset = offset
        self._new_detokenizer = new_detokenizer
        self._detokenizer: Detokenizer | None = None

    def chat(self, positions: Iterable[PositionLogprobs], num_top: int) -> dict[str, Any]:
        """Return a chat choice's `logprobs`."""
        content = [
            {**self._entry(p.chosen), "top_logprobs": [self._entry(t) for t in p.top[:num_top]]}
            for p in positions
        ]
        return {"content": content, "refusal": None}

    def completion(self, positions: Iterable[PositionLogprobs], num_top: int) -> dict[str, Any]:
        """Return a completion choice's `logprobs`.

        A token's offset is that of the first character that it has a part in. A name is no measure:
        of half a character, of a special token that is not shown, it is longer than the text.
        """
        if self._detokenizer is None:
            assert self._new_detokenizer is not None, "a completion has offsets"
            self._detokenizer = self._new_detokenizer()
        tokens: list[str] = []
        values: list[float] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for position in positions:
            tokens.append(self._name(position.chosen.token_id))
            values.append(_finite(position.chosen.logprob))
            tops.append(self._top(position, num_top))
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.push(position.chosen.token_id))
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def echoed(
        self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs], num_top: int
    ) -> dict[str, Any]:
        """Return the `logprobs` of a prompt that is repeated before a completion.

        Its text ends where the output's begins: what the tokenizer put in front of it has none.

        Args:
            token_ids: of the prompt.
            positions: of all its tokens but the first.
            num_top: alternatives.
        """
        detokenizer = self._tokenizer.detokenizer([], skip_special_tokens=False)
        lengths = [len(detokenizer.push(token_id)) for token_id in token_ids]
        lengths[-1] += len(detokenizer.flush())
        ends = list(itertools.accumulate(lengths))
        begin = self._offset - ends[-1]
        values = [_finite(position.chosen.logprob) for position in positions]
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None, *values],
            "top_logprobs": [None, *(self._top(position, num_top) for position in positions)],
            "text_offset": [max(0, begin + end) for end in [0, *ends[:-1]]],
        }

    def prompt(
        self, positions: Iterable[PositionLogprobs], num_top: int
    ) -> list[dict[str, Any] | None]:
        """Return an answer's `prompt_logprobs`, from all prompt tokens but the first."""
        found: list[dict[str, Any] | None] = [None]
        for position in positions:
            ranked = [(position.chosen, position.rank)]
            ranked += ((token, rank) for rank, token in enumerate(position.top[:num_top], start=1))
            found.append(
                {
                    str(token.token_id): {
                        "logprob": _finite(token.logprob),
                        "rank": rank,
                        "decoded_token": self._tokenizer.token_text(token.token_id),
                    }
                    for token, rank in ranked
                }
            )
        return found

    def _top(self, position: PositionLogprobs, num_top: int) -> dict[str, float]:
        top = {self._name(t.token_id): _finite(t.logprob) for t in position.top[:num_top]}
        top.setdefault(self._name(position.chosen.token_id), _finite(position.chosen.logprob))
        return top

    def _entry(self, token: TokenLogprob) -> dict[str, Any]:
        return {
            "token": self._name(token.token_id),
            "logprob": _finite(token.logprob),
            "bytes": list(self._tokenizer.token_bytes(token.token_id)),
        }

    def _name(self, token_id: int) -> str:
        if self._tokens_as_ids:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST) if not math.isnan(logprob) else LEAST
