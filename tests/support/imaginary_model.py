"""An imaginary model: what it says after any tokens, and what must come of a request alone.

The KV of a token is modelled as a digest of all tokens up to it.
"""

import hashlib
import random
import struct
from collections.abc import Sequence as SequenceOf

from pagoda_engine.sampling.beam_search import BeamSearch
from pagoda_engine.sequence_request import SequenceRequest
from support.forcing_mask import ForcingMask

VOCAB_SIZE = 50
EOS = 49

_recent_kvs: dict[bytes, list[int]] = {}
_MAX_RECENT = 200


def kvs_of(token_ids: SequenceOf[int]) -> list[int]:
    """Return each token's KV, which tells of all tokens up to it; to be read only.

    A sequence is asked about in every step: what it had a few tokens ago is kept.
    """
    key = bytes(token_ids)
    if (kvs := _recent_kvs.get(key)) is None:
        ends = range(len(key), max(0, len(key) - 8), -1)
        end = next((end for end in ends if key[:end] in _recent_kvs), 0)
        kvs = _recent_kvs[key[:end]].copy() if end else []
        kv = kvs[-1] if kvs else 7
        kvs += [kv := hash((kv, token)) for token in key[end:]]
        if len(_recent_kvs) >= _MAX_RECENT:
            _recent_kvs.clear()
        _recent_kvs[key] = kvs
    return kvs


def next_token(token_ids: SequenceOf[int]) -> int:
    """Return what the imaginary model says after these tokens; now and then EOS."""
    return hashlib.blake2b(bytes(token_ids), digest_size=8).digest()[0] % VOCAB_SIZE


def candidates(token_ids: SequenceOf[int]) -> list[tuple[int, float]]:
    """Return all tokens with what the imaginary model says of them, the likeliest first."""
    digest = hashlib.shake_128(bytes(token_ids)).digest(4 * VOCAB_SIZE)
    values = [-value / 2**32 for value in struct.unpack(f"{VOCAB_SIZE}I", digest)]
    values[EOS] /= 2  # now and then EOS
    return sorted(enumerate(values), key=lambda pair: pair[1], reverse=True)


def search_of(request: SequenceRequest, max_model_len: int) -> BeamSearch | None:
    params = request.sampling
    if params.beam_search is None:
        return None
    return BeamSearch(
        params.beam_search,
        max_tokens=min(params.max_tokens, max_model_len - len(request.prompt_token_ids)),
        min_tokens=0,
        stop_token_ids={EOS},
        num_logprobs=None,
    )


def expected_hypotheses(request: SequenceRequest, max_model_len: int) -> list[tuple[int, ...]]:
    """Search alone and without blocks: the naive truth."""
    search = search_of(request, max_model_len)
    assert search is not None
    while not search.is_over:
        prompt = request.prompt_token_ids
        search.advance([candidates([*prompt, *beam.token_ids]) for beam in search.beams])
    return [hypothesis.token_ids for hypothesis in search.hypotheses]


class ForcesRuns(ForcingMask):
    """Of each 16 output tokens, forces those from `first` to the last."""

    vocab_size = VOCAB_SIZE

    def __init__(self, first: int) -> None:
        self.first = first

    def forced(self, output_token_ids: SequenceOf[int]) -> SequenceOf[int]:
        index = len(output_token_ids) % 16
        return range(index, 16) if index >= self.first else ()


def token_after(request: SequenceRequest, token_ids: SequenceOf[int]) -> int:
    """Return what is chosen after these tokens, prompt included."""
    mask = request.token_mask
    forced = mask.forced(token_ids[len(request.prompt_token_ids) :]) if mask is not None else ()
    return forced[0] if forced else next_token(token_ids)


def expected_output(request: SequenceRequest, max_model_len: int) -> list[int]:
    """Compute a sequence alone, one token at a time, without blocks: the naive truth."""
    tokens = [*request.prompt_token_ids, *request.output_token_ids]
    num_prompt = len(request.prompt_token_ids)
    while True:
        tokens.append(token_after(request, tokens))
        num_output = len(tokens) - num_prompt
        is_full = num_output == request.sampling.max_tokens or len(tokens) == max_model_len
        if tokens[-1] == EOS or is_full or request.prefill_only:
            return tokens[num_prompt + len(request.output_token_ids) :]


class AlwaysRight:
    """Proposes what the imaginary model says."""

    def __init__(self, token_ids: SequenceOf[int], max_num_tokens: int) -> None:
        self.token_ids = token_ids

    def propose(self, max_tokens: int) -> SequenceOf[int]:
        tokens = [*self.token_ids]
        for _ in range(max_tokens):
            tokens.append(next_token(tokens))
        return tokens[len(self.token_ids) :]


class OftenRight:
    """Proposes what the imaginary model says, but for some tokens, and now and then nothing."""

    def __init__(self, token_ids: SequenceOf[int], rng: random.Random) -> None:
        self.token_ids, self.rng = token_ids, rng

    def propose(self, max_tokens: int) -> SequenceOf[int]:
        tokens = [*self.token_ids]
        for _ in range(self.rng.randint(0, max_tokens)):
            is_right = self.rng.random() < 0.8
            tokens.append(next_token(tokens) if is_right else self.rng.randrange(VOCAB_SIZE))
        return tokens[len(self.token_ids) :]
