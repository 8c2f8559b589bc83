"""DRY and the LZ penalty against their definitions, written out token by token in float64."""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pagoda_engine import SamplingParams
from pagoda_engine.sampling import repeat_penalties
from pagoda_engine.sampling.repeat_penalties import RepeatPenalties

VOCAB_SIZE = 50
DRY: dict[str, Any] = {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2}


def penalties(**params: Any) -> RepeatPenalties:
    return RepeatPenalties(SamplingParams(max_tokens=1, **params), VOCAB_SIZE)


def changes(token_ids: Sequence[int], **params: Any) -> dict[int, float]:
    ids, values = penalties(**params).changes(token_ids)
    assert len({*ids.tolist()}) == len(ids)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def repeated_length(tokens: Sequence[int], end: int, limit: int, breakers: Sequence[int]) -> int:
    """How many tokens up to `end`, that included, are the last ones of all, in order."""
    length = 0
    while length < limit and length <= end and tokens[end - length] == tokens[-1 - length]:
        if tokens[end - length] in breakers:
            break
        length += 1
    return length


def defined_dry(
    tokens: Sequence[int], multiplier: float, base: float, allowed: int, breakers: Sequence[int]
) -> dict[int, float]:
    tokens = tokens[-repeat_penalties.DRY_WINDOW :]
    longest: dict[int, int] = {}
    for end in range(len(tokens) - 1):
        length = repeated_length(tokens, end, 50, breakers)
        longest[tokens[end + 1]] = max(longest.get(tokens[end + 1], 0), length)
    return {
        token: -multiplier * base ** (length - allowed)
        for token, length in longest.items()
        if length >= allowed and token not in breakers
    }


def defined_lz(tokens: Sequence[int], strength: float) -> dict[int, float]:
    tokens = tokens[-repeat_penalties.LZ_WINDOW :]
    cheapest: dict[int, float] = {}
    for place, token in enumerate(tokens):
        phrase = 1 + (repeated_length(tokens, place - 1, 31, ()) if place else 0)
        bits = (math.log2(len(tokens) - place) + math.log2(phrase)) / phrase
        cheapest[token] = min(cheapest.get(token, math.inf), bits)
    return {
        token: -strength * max(0.0, math.log2(VOCAB_SIZE) - bits)
        for token, bits in cheapest.items()
    }


def repetitive(rng: random.Random, length: int) -> list[int]:
    """Tokens of which many repeat what came before them."""
    tokens = [rng.randrange(VOCAB_SIZE)]
    while len(tokens) < length:
        start = rng.randrange(len(tokens))
        tokens += tokens[start : start + rng.choice([1, 3, 8, 70])]
        tokens += [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 1, 2]))]
    return tokens[:length]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that a short sequence outgrows."""
    monkeypatch.setattr(repeat_penalties, "DRY_WINDOW", 90)
    monkeypatch.setattr(repeat_penalties, "LZ_WINDOW", 60)


@pytest.mark.parametrize("breakers", [(), (3,), (3, 30, 31)])
@pytest.mark.usefixtures("small_windows")
def test_dry_is_as_defined_at_every_token(seed: int, breakers: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    tokens = repetitive(rng, 400)
    kept = penalties(**DRY, dry_sequence_breakers=breakers)
    num_penalised, length = 0, rng.randrange(1, 150)
    while length <= len(tokens):
        ids, values = kept.changes(tokens[:length])
        want = defined_dry(tokens[:length], 0.8, 1.75, 2, breakers)
        assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == pytest.approx(want)
        num_penalised += len(want)
        length += rng.choice([*[1] * 20, 2, 60])  # forced tokens come several at a time
    assert num_penalised


@pytest.mark.usefixtures("small_windows")
def test_lz_is_as_defined_at_every_token(seed: int) -> None:
    rng = random.Random(seed)
    tokens = repetitive(rng, 300)
    kept = penalties(lz_penalty=0.2)
    for length in range(rng.randrange(1, 40), len(tokens) + 1):
        ids, values = kept.changes(tokens[:length])
        found = dict(zip(ids.tolist(), values.tolist(), strict=True))
        assert found == pytest.approx(defined_lz(tokens[:length], 0.2), abs=1e-5)


@pytest.mark.usefixtures("small_windows")
def test_what_is_kept_up_to_date_equals_what_is_begun_anew(seed: int) -> None:
    """As after a preemption or a failover: to the last bit."""
    tokens = repetitive(random.Random(seed), 700)
    params = {**DRY, "dry_sequence_breakers": (4, 9), "lz_penalty": 0.3}
    kept = penalties(**params)
    for length in range(1, len(tokens) + 1):
        for one, other in zip(
            kept.changes(tokens[:length]), penalties(**params).changes(tokens[:length]), strict=True
        ):
            assert np.array_equal(one, other)


def test_dry_grows_with_the_length_and_spares_breakers() -> None:
    said = [1, 2, 3, 4, 5]
    assert changes([*said, 9, 1], **DRY) == {}
    assert changes([*said, 9, 1, 2], **DRY) == pytest.approx({3: -0.8})
    assert changes([*said, 9, 1, 2, 3, 4], **DRY) == pytest.approx({5: -0.8 * 1.75**2})
    assert changes([*said, 9, 1, 2, 3, 4], **DRY, dry_sequence_breakers=(5,)) == {}
    assert changes([*said, 9, 1, 2, 3, 4], **DRY, dry_sequence_breakers=(2,)) == pytest.approx(
        {5: -0.8}
    )


def test_dry_counts_fifty_tokens_and_stays_finite() -> None:
    tokens = [7] * 500
    assert changes(tokens, **DRY) == pytest.approx({7: -0.8 * 1.75**48})
    largest = {"dry_multiplier": 100.0, "dry_base": 100.0, "dry_allowed_length": 1}
    assert math.isfinite(changes(tokens, **largest)[7])


def test_dry_looks_back_as_far_as_its_window() -> None:
    window = repeat_penalties.DRY_WINDOW
    between = [10 + i % 2 for i in range(window - 5)]
    assert changes([1, 2, 3, *between, 1, 2], **DRY) == pytest.approx({3: -0.8})
    assert changes([1, 2, 3, 10, *between, 1, 2], **DRY) == {}


def test_lz_is_what_the_code_saves() -> None:
    found = changes([5, 6, 7, 8], lz_penalty=1.0)
    bits = math.log2(VOCAB_SIZE)
    assert found == pytest.approx({5: 2 - bits, 6: math.log2(3) - bits, 7: 1 - bits, 8: -bits})
    found = changes([5, 6, 7, 8, 5, 6], lz_penalty=1.0)
    assert found[7] == pytest.approx((2 + math.log2(3)) / 3 - bits)


def test_both_add_up_and_no_token_comes_twice() -> None:
    tokens = [1, 2, 3, 1, 2]
    dry, lz = changes(tokens, **DRY), changes(tokens, lz_penalty=0.5)
    both = changes(tokens, **DRY, lz_penalty=0.5)
    assert both == pytest.approx({token: lz[token] + dry.get(token, 0.0) for token in lz})
    assert dry


def test_a_first_token_repeats_nothing() -> None:
    assert changes([4], **DRY) == {}
    assert changes([4], lz_penalty=1.0) == pytest.approx({4: -math.log2(VOCAB_SIZE)})
