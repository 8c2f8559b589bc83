"""Texts that end DRY's repetitions, as the tokens that hold them. Knows a tokenizer."""

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.tokenizer import ModelTokenizer

MAX_BREAKER_TOKENS = 16_384
_KEPT_RESULTS = 64


class SequenceBreakers:
    """Looks breakers up in one model's tokens, all of whose texts it joins at the first look."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self.token_ids = functools.lru_cache(_KEPT_RESULTS)(self._token_ids)

    @functools.cached_property
    def _joined(self) -> tuple[bytes, list[int]]:
        """Return the bytes of all tokens, and where each token's end."""
        tokens = [self._tokenizer.token_bytes(i) for i in range(self._tokenizer.vocab_size)]
        return b"".join(tokens), list(itertools.accumulate(map(len, tokens)))

    def _token_ids(self, breakers: tuple[str, ...], vocab_size: int) -> Sequence[int]:
        """Return the tokens below `vocab_size` that hold a breaker, in order.

        A breaker that no token holds is represented by its last token, as it is spelled after a
        letter.

        Raises:
            InvalidRequestError: they are too many.
        """
        found = set[int]()
        for breaker in breakers:
            holding = list(self._holding(breaker.encode()))
            if not holding:
                holding = self._tokenizer.encode(f"a{breaker}", add_special_tokens=False)[-1:]
            found.update(token_id for token_id in holding if token_id < vocab_size)
            if len(found) > MAX_BREAKER_TOKENS:
                raise InvalidRequestError(
                    f"'dry_sequence_breakers' are in more than {MAX_BREAKER_TOKENS} tokens of this "
                    f"model, which is the limit, up to {breaker!r}; leave out what is as common as "
                    "letters",
                    param="dry_sequence_breakers",
                )
        return tuple(sorted(found))

    def _holding(self, text: bytes) -> Iterator[int]:
        """Yield each token that holds a text."""
        joined, ends = self._joined
        at = joined.find(text)
        while at >= 0:
            token_id = bisect_right(ends, at)
            if at + len(text) <= ends[token_id]:
                yield token_id
                at = joined.find(text, ends[token_id])
            else:
                at = joined.find(text, at + 1)
