"""Penalties for tokens that would go on with what the sequence has said before: DRY and LZ.

Computed on the host from the tokens, a few for each step, as the sequence's next row is planned.
Knows one sequence's tokens. Knows nothing of logits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagoda_engine.sampling.suffix_matches import SuffixMatches
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.token_mask import token_bits

DRY_WINDOW = 8192
"""Latest tokens, prompt included, in which DRY looks for repetitions."""
MAX_DRY_LENGTH = 50
"""Tokens of a repetition that DRY counts, as other implementations do."""
LZ_WINDOW = 512
MAX_LZ_LENGTH = 32
"""Sizes of the window and of a phrase that the paper uses."""

_LARGEST = np.finfo(np.float32).max / 4  # still finite after other penalties
_LOG2 = np.log2(np.arange(1, LZ_WINDOW + 1))

Changes = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Token ids, none twice, and what is added to the logit of each; of one length."""


class RepeatPenalties:
    """DRY and LZ penalty of one sequence."""

    __slots__ = ("_dry", "_log_vocab", "_lz", "_params")

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        """Begin with no token."""
        self._params = params
        self._log_vocab = float(np.log2(vocab_size))
        self._dry: SuffixMatches | None = None
        self._lz: SuffixMatches | None = None
        if params.dry_multiplier:
            breakers = params.dry_sequence_breakers
            self._dry = SuffixMatches(
                window=DRY_WINDOW,
                max_length=MAX_DRY_LENGTH,
                breakers=token_bits(breakers, vocab_size) if breakers else None,
            )
        if params.lz_penalty:
            self._lz = SuffixMatches(window=LZ_WINDOW, max_length=MAX_LZ_LENGTH - 1)

    def changes(self, token_ids: Sequence[int]) -> Changes:
        """Return what the next token's logits change by.

        Args:
            token_ids: all tokens of the sequence: those of the call before, and more.
        """
        found = []
        if self._dry is not None:
            self._dry.follow(token_ids)
            found.append(_dry(self._dry, self._params))
        if self._lz is not None:
            self._lz.follow(token_ids)
            found.append(_lz(self._lz, self._params.lz_penalty, self._log_vocab))
        if len(found) == 1:
            return found[0]
        ids, places = np.unique(np.concatenate([ids for ids, _ in found]), return_inverse=True)
        values = np.bincount(places, np.concatenate([values for _, values in found]))
        return ids, values.astype(np.float32)


def _dry(matches: SuffixMatches, params: SamplingParams) -> Changes:
    """Minus ``multiplier * base ** (length - allowed_length)`` of each token's longest match."""
    tokens, lengths = matches.matches()
    at = np.flatnonzero(lengths >= params.dry_allowed_length)
    keys = tokens[1:][at].astype(np.int64) << 8 | lengths[at]
    keys.sort()
    keys = keys[np.append(keys[1:] >> 8 != keys[:-1] >> 8, True)] if len(keys) else keys
    keys = keys[~matches.breaks(keys >> 8)]
    exponents = (keys & 0xFF) - params.dry_allowed_length
    with np.errstate(over="ignore"):
        penalties = params.dry_multiplier * np.float64(params.dry_base) ** exponents
    return keys >> 8, -np.minimum(penalties, _LARGEST).astype(np.float32)


def _lz(matches: SuffixMatches, strength: float, log_vocab: float) -> Changes:
    """Minus `strength` times the bits that an LZ77 code saves on each token of the window.

    A literal takes ``log2(vocabulary)`` bits. As the last of a phrase of L tokens that has come d
    tokens before, a token takes its share, ``(log2(d) + log2(L)) / L``; the cheapest phrase counts.
    """
    tokens, lengths = matches.matches()
    phrases = np.ones(len(tokens), np.int64)
    phrases[1:] += lengths
    costs = (_LOG2[: len(tokens)][::-1] + _LOG2[phrases - 1]) / phrases
    keys = tokens.astype(np.int64) << 32 | costs.astype(np.float32).view(np.int32)
    keys.sort()  # floats >= 0 have the order of their bits
    keys = keys[np.append(True, keys[1:] >> 32 != keys[:-1] >> 32)] if len(keys) else keys
    cheapest = (keys & 0xFFFFFFFF).astype(np.int32).view(np.float32)
    savings = np.maximum(log_vocab - cheapest, 0.0)
    return keys >> 32, (-strength * savings).astype(np.float32)
