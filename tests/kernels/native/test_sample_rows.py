"""The library's sampler, on every instruction set: large vocabularies, few and many threads."""

import random

import numpy as np
import pytest
import torch
from support.sampling_rows import rows_of

from pagoda_kernels.native.library import SCRATCH_BYTES, NativeLibrary
from pagoda_kernels.sampling.logit_bias import LogitBias
from pagoda_kernels.sampling.native import can_sample, sample_rows
from pagoda_kernels.sampling.philox import UNIFORM_BITS, philox_mantissa
from pagoda_kernels.sampling.seen_tokens import SeenTokens

CPU = torch.device("cpu")
EDGE = 1e-4  # of cumulative probability: what float32 may shift, and one token of 33,000
OPTIONS = [
    {},
    {"temperature": 0.3},
    {"min_p": 0.02},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5000, "top_p": 0.5},
    {"top_k": 70, "top_p": 0.8, "min_p": 0.01, "temperature": 1.7},
]


def kept(logits: np.ndarray, options: dict[str, float]) -> np.ndarray:
    """Probabilities after truncation, in float64."""
    scaled = (logits - logits.max()).astype(np.float64) / options.get("temperature", 1.0)
    probs = np.exp(scaled)
    if 0 < (top_k := int(options.get("top_k", 0))) < len(probs):
        probs[probs < np.sort(probs)[-top_k]] = 0
    probs /= probs.sum()
    if "top_p" in options:
        ordered = np.sort(probs)[::-1]
        last = min(int(ordered.cumsum().searchsorted(options["top_p"])), len(ordered) - 1)
        probs[probs < ordered[last] * (1 - 1e-6)] = 0
    probs[probs < probs.max() * options.get("min_p", 0.0)] = 0
    return probs / probs.sum()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("vocab_size", [15, 129, 33_001])
def test_draws_invert_the_distribution(
    library: NativeLibrary, vocab_size: int, dtype: torch.dtype, options: dict[str, float]
) -> None:
    logits = (2.5 * torch.randn(24, vocab_size + 7)).to(dtype)[:, 3 : vocab_size + 3]
    logits[:, 1 : vocab_size // 3 : 2] = float("-inf")
    rows = rows_of(24, CPU, **options, seed=range(24), index=range(5, 29))
    token_ids, is_valid = sample_rows(library, logits, rows)
    assert is_valid.all()
    for row, token_id in enumerate(token_ids.tolist()):
        probs = kept(logits[row].float().numpy(), options)
        cdf = probs.cumsum()
        uniform = philox_mantissa(row, row + 5) * 2.0**-UNIFORM_BITS
        assert cdf[token_id] - probs[token_id] - EDGE <= uniform <= cdf[token_id] + EDGE
        assert logits[row, token_id] > float("-inf")


def test_threads_change_nothing(library: NativeLibrary, num_threads: int) -> None:
    logits = torch.randn(19, 5000)
    rows = rows_of(19, CPU, top_p=0.95, top_k=[0, *range(1, 19)], seed=range(19))
    together = sample_rows(library, logits, rows)[0]
    alone = [
        int(
            sample_rows(
                library,
                logits[row : row + 1],
                rows_of(1, CPU, top_p=0.95, top_k=row, seed=row),
            )[0]
        )
        for row in range(19)
    ]
    assert together.tolist() == alone


def test_equals_everywhere_are_all_kept(library: NativeLibrary) -> None:
    """A digit that holds all of a row, and a bound that all lanes reach."""
    logits = torch.zeros(400, 3000)
    logits[:, 2000:] = -1.0
    for options in ({"top_k": 3}, {"top_p": 0.01}, {"top_k": 90, "top_p": 0.2}):
        rows = rows_of(400, CPU, **options, seed=range(400))
        token_ids, _ = sample_rows(library, logits, rows)
        assert token_ids.max() < 2000
        assert len(token_ids.unique()) > 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("vocab_size", [15, 129, 5001])
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
def test_what_is_changed_in_passing_gives_the_tokens_of_a_changed_copy(
    library: NativeLibrary, vocab_size: int, dtype: torch.dtype, is_drawn: bool
) -> None:
    """Few biases and many, of tokens with a penalty and others, in some rows."""
    rng, num_rows = random.Random(vocab_size), 40
    logits = (2 * torch.randn(num_rows, vocab_size + 7)).to(dtype)[:, 3 : vocab_size + 3]
    rows = rows_of(num_rows, CPU, top_p=[0.7, 1.0] * 20, seed=range(num_rows)) if is_drawn else None
    some = max(1, vocab_size // 20)
    biased, seen = [], []
    copy = logits.float().clone()
    for row in range(num_rows):
        if row % 3:
            known = (rng.choices(range(vocab_size), k=some) for _ in range(2))
            seen.append((row, SeenTokens(*known, repetition=1.7, frequency=0.6, presence=-0.8)))
            seen[-1][1].penalise(copy[row].numpy())
        if row % 4:
            token_ids = rng.sample(range(vocab_size), some if row % 4 == 1 else vocab_size // 2)
            bias = {token_id: rng.uniform(-4, 4) for token_id in token_ids}
            biased.append((row, LogitBias(bias, CPU)))
            for token_id, added in bias.items():
                copy[row, token_id] += added
    before = logits.clone()
    got, is_valid = sample_rows(library, logits, rows, biased, seen)
    assert is_valid.all()
    assert got.tolist() == sample_rows(library, copy, rows)[0].tolist()
    assert torch.equal(logits, before)
    assert got.tolist() != sample_rows(library, logits, rows)[0].tolist()


def test_tokens_beyond_the_vocabulary_are_refused(library: NativeLibrary) -> None:
    logits = torch.zeros(2, 9)
    with pytest.raises(ValueError, match="expected below 9, got 9"):
        sample_rows(library, logits, None, biased=[(1, LogitBias({3: 1.0, 9: 1.0}, CPU))])
    seen = SeenTokens([1], [], repetition=2.0, frequency=0.0, presence=0.0)
    seen.add(12)
    with pytest.raises(ValueError, match="expected below 9, got 12"):
        sample_rows(library, logits, None, seen=[(0, seen)])
    with pytest.raises(ValueError, match="expected 0 or more, got -1"):
        LogitBias({5: 1.0, -1: 1.0}, CPU)
    with pytest.raises(ValueError, match="expected 0 or more, got -2"):
        SeenTokens([-2], [3], repetition=2.0, frequency=0.0, presence=0.0)


def test_the_largest_of_every_row(library: NativeLibrary) -> None:
    for vocab_size in (1, 16, 63, 64, 65, 1000):
        logits = torch.randint(-3, 4, (9, vocab_size)).bfloat16()
        logits[3, vocab_size // 2] = float("nan")
        logits[4] = float("-inf")
        logits[5, -1] = float("inf")
        token_ids, is_valid = sample_rows(library, logits, None)
        assert is_valid.tolist() == [True] * 3 + [False] * 3 + [True] * 3
        wanted = logits.float().numpy().argmax(1)
        wanted[3:6] = 0
        assert token_ids.tolist() == wanted.tolist()


def test_what_cannot_be_sampled_here(library: NativeLibrary) -> None:
    assert can_sample(library, torch.empty(2, 262_144, dtype=torch.bfloat16))
    assert not can_sample(library, torch.empty(2, 9, dtype=torch.float16))
    assert not can_sample(library, torch.empty(0, SCRATCH_BYTES // 8))
