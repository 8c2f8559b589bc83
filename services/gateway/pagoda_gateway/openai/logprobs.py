"""Log probabilities in the two shapes that OpenAI answers with."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pagoda.rpc.v1.generate_pb2 import PositionLogprobs, TokenLogprob
from pagoda_gateway.text.detokenizer import REPLACEMENT, Detokenizer
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
        self._places: _TokenPlaces | None = None

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
        if self._places is None:
            assert self._new_detokenizer is not None, "a completion has offsets"
            self._places = _TokenPlaces(self._new_detokenizer(), self._offset)
        tokens: list[str] = []
        values: list[float] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for position in positions:
            tokens.append(self._name(position.chosen.token_id))
            values.append(_finite(position.chosen.logprob))
            tops.append(self._top(position, num_top))
            offsets.append(self._places.push(position.chosen.token_id))
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
        places = _TokenPlaces(self._tokenizer.detokenizer([], skip_special_tokens=False), 0)
        found = [places.push(token_id) for token_id in token_ids]
        begin = self._offset - places.end()
        values = [_finite(position.chosen.logprob) for position in positions]
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None, *values],
            "top_logprobs": [None, *(self._top(position, num_top) for position in positions)],
            # The first token begins the text, though a decoder leaves out a space there.
            "text_offset": [0, *(max(0, begin + place) for place in found[1:])],
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


class _TokenPlaces:
    """Where tokens are in a text, by its detokeniser."""

    def __init__(self, detokenizer: Detokenizer, begin: int) -> None:
        self._detokenizer = detokenizer
        self._end = begin  # of the text so far
        self._is_held = False  # the last token has no text, or none yet

    def push(self, token_id: int) -> int:
        """Return where the next token begins: of half a character, where that does."""
        text = self._detokenizer.push(token_id)
        # What a character was left with that nobody has ended is not this token's.
        num_left = int(self._is_held and text.startswith(REPLACEMENT))
        place = self._end + num_left
        self._end += len(text)
        self._is_held = len(text) == num_left
        return place

    def end(self) -> int:
        """Return where the text ends; no token will follow."""
        return self._end + len(self._detokenizer.flush())


def _finite(logprob: float) -> float:
    return max(logprob, LEAST) if not math.isnan(logprob) else LEAST
