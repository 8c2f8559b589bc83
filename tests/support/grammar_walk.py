"""Random outputs that a grammar allows, as a model without any sense would make them."""

import random

import numpy as np
from llguidance import LLMatcher, LLTokenizer

SOFT_TOKENS = 40  # from here on it looks for an end
HARD_TOKENS = 400
CLOSING = tuple(b'"]}@')  # a text without its @ is no address, and ends nowhere else


class GrammarWalker:
    """Walks at random through grammars of one tokenizer."""

    def __init__(self, tokenizer_json: str, *, eos_token_id: int) -> None:
        """Take what each token writes from `tokenizer_json`."""
        tokenizer = LLTokenizer(tokenizer_json, eos_token=[eos_token_id])
        texts = [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
        self._decode = tokenizer.decode_bytes
        self._encode = tokenizer.tokenize_str
        self._eos = eos_token_id
        self._is_closing = np.array([text[-1:] != b"" and text[-1] in CLOSING for text in texts])
        self._is_short = np.array([len(text) == 1 for text in texts])

    def walk(self, matcher: LLMatcher, rng: random.Random) -> bytes | None:
        """Return a whole output; None: this walk came to no end within bounds."""
        output: list[int] = []
        while len(output) < HARD_TOKENS:
            forced = matcher.compute_ff_tokens()
            if self._eos in forced or matcher.is_stopped():
                return self._decode([*output, *(t for t in forced if t != self._eos)])
            if not forced:
                allowed = self._allowed(matcher)
                is_late = len(output) >= SOFT_TOKENS
                if allowed[self._eos] and (is_late or allowed.sum() == 1 or rng.random() < 0.3):
                    return self._decode(output)
                allowed[self._eos] = False
                forced = [self._choose(allowed, rng, is_late=is_late)]
            assert matcher.consume_tokens(forced), matcher.get_error()
            output += forced
        return None

    def allows(self, matcher: LLMatcher, output: str) -> bool:
        """Return whether a grammar lets a whole output through."""
        return self.begins(matcher, output) and matcher.is_accepting()

    def begins(self, matcher: LLMatcher, output: str) -> bool:
        """Return whether a grammar lets an output so far through; it may have no end."""
        tokens = self._encode(output)
        return int(matcher.try_consume_tokens(tokens)) == len(tokens)

    def _allowed(self, matcher: LLMatcher) -> np.ndarray:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        assert not matcher.is_error(), matcher.get_error()
        return np.unpackbits(mask, bitorder="little")[: len(self._is_short)].astype(bool)

    def _choose(self, allowed: np.ndarray, rng: random.Random, *, is_late: bool) -> int:
        for wanted in (self._is_closing, self._is_short) if is_late else ():
            if (allowed & wanted).any() and rng.random() < 0.7:
                allowed = allowed & wanted
                break
        return int(rng.choice(np.flatnonzero(allowed)))
