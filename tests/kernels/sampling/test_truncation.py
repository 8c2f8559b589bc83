"""What truncation keeps, against its definitions in float64, sorted and added up token by token."""

import itertools
import random

import numpy as np
import pytest
import torch
from support.sampling_rows import rows_of

from pagoda_kernels.sampling.philox import COIN, UNIFORM_BITS, philox_mantissa
from pagoda_kernels.sampling.rows import NO_XTC
from pagoda_kernels.sampling.sample_tokens import sample_tokens

CPU = torch.device("cpu")
OFF = {"xtc_threshold": 0.1}
EDGE = 1e-5


def normalised(probs):
    return probs / probs.sum()


def defined(logits, options):
    """Probabilities that the definitions leave, in the order in which they are applied."""
    values = logits.astype(np.float64)
    if sigmas := options.get("top_n_sigma", 0.0):
        finite = values[np.isfinite(values)]
        deviation = np.sqrt(((finite - finite.mean()) ** 2).mean())
        values = np.where(values < values.max() - sigmas * deviation, -np.inf, values)
    values = values / options.get("temperature", 1.0)
    probs = normalised(np.exp(values - values.max()))
    if top_k := options.get("top_k", 0):
        ranked = sorted(range(len(probs)), key=lambda token: -probs[token])
        probs[ranked[top_k:]] = 0
        probs = normalised(probs)
    if (typical_p := options.get("typical_p", 1.0)) < 1:
        kept = [token for token in range(len(probs)) if probs[token] > 0]
        entropy = -sum(probs[token] * np.log(probs[token]) for token in kept)
        kept.sort(key=lambda token: abs(-np.log(probs[token]) - entropy))
        probs = normalised(smallest_set(probs, kept, typical_p))
    if (top_p := options.get("top_p", 1.0)) < 1:
        ranked = sorted(range(len(probs)), key=lambda token: -probs[token])
        probs = normalised(smallest_set(probs, ranked, top_p))
    probs = normalised(np.where(probs < options.get("min_p", 0.0) * probs.max(), 0, probs))
    if options.get("xtc_probability", 0.0) == 1:
        reaching = [
            t for t in range(len(probs)) if probs[t] >= max(1e-30, options["xtc_threshold"])
        ]
        reaching.sort(key=lambda token: -probs[token])
        probs[reaching[:-1]] = 0
        probs = normalised(probs)
    return probs


def smallest_set(probs, ranked, mass):
    kept = np.zeros_like(probs)
    for token, before in zip(ranked, itertools.accumulate(probs[ranked], initial=0), strict=False):
        if before < mass:
            kept[token] = probs[token]
    return kept


def draw(logits, count, sampler=sample_tokens, **options):
    """Draw at each of many output indices."""
    rows = rows_of(count, CPU, **{**OFF, **options}, index=range(count))
    token_ids, is_valid = sampler(torch.from_numpy(logits).repeat(count, 1), rows)
    assert is_valid.all()
    return token_ids.numpy()


CASES = [
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 0.3, "temperature": 3.0},
    {"top_n_sigma": 2.0, "temperature": 0.5, "top_k": 9},
    {"typical_p": 0.2},
    {"typical_p": 0.9, "temperature": 1.5},
    {"typical_p": 0.6, "top_p": 0.8, "min_p": 0.1},
    {"typical_p": 0.7, "top_k": 12},
    {"xtc_threshold": 0.05, "xtc_probability": 1.0},
    {"xtc_threshold": 0.1, "xtc_probability": 1.0, "top_p": 0.9},
    {"xtc_threshold": 0.0, "xtc_probability": 1.0, "min_p": 0.02},
    {"xtc_threshold": 0.5, "xtc_probability": 1.0},
    {"top_n_sigma": 2.0, "top_k": 30, "typical_p": 0.95, "top_p": 0.95, "min_p": 0.01,
     "xtc_threshold": 0.08, "xtc_probability": 1.0, "temperature": 1.2},
    {"top_p": 0.9},
    {"top_p": 0.3, "top_k": 20},
]  # fmt: skip


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("vocab_size", [40, 2500])
def test_draws_invert_the_defined_distribution(seed, vocab_size, options):
    rng = np.random.default_rng(seed)
    num_tokens = 0
    for key in range(8):
        logits = (2 * rng.standard_normal(vocab_size)).astype(np.float32)
        logits[rng.random(vocab_size) < 0.1] = -np.inf
        cdf = defined(logits, options).cumsum()
        token_ids = draw(logits, 64, **options, seed=key)
        uniforms = [philox_mantissa(key, index) * 2.0**-UNIFORM_BITS for index in range(64)]
        for token_id, uniform in zip(token_ids.tolist(), uniforms, strict=True):
            if np.abs(cdf / cdf[-1] - uniform).min() > EDGE:  # where float32 may round across
                assert token_id == int((cdf / cdf[-1]).searchsorted(uniform, side="right"))
                num_tokens += 1
    assert num_tokens > 400


@pytest.mark.parametrize("options", CASES[:-2], ids=str)
def test_frequencies_are_as_defined(seed, options):
    rng = np.random.default_rng(seed)
    logits = (1.5 * rng.standard_normal(24)).astype(np.float32)
    probs = defined(logits, options)
    count = 6000
    counts = np.bincount(draw(logits, count, **options, seed=seed), minlength=24)
    assert counts[probs == 0].sum() == 0
    common = probs * count > 5
    expected = probs[common] * count
    chi_squared = ((counts[common] - expected) ** 2 / expected).sum()
    freedom = max(1, common.sum() - 1)
    assert chi_squared < freedom + 5 * np.sqrt(2 * freedom) + 5  # one of a million seeds fails


@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_the_coin_of_xtc_falls_as_often_as_asked_and_by_seed_and_index_alone(seed, probability):
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    count = 4000
    options = {"xtc_threshold": 0.25, "seed": seed}
    token_ids = draw(logits, count, **options, xtc_probability=probability)
    off, on = draw(logits, count, **options), draw(logits, count, **options, xtc_probability=1.0)
    coins = [philox_mantissa(seed, index, COIN) * 2.0**-UNIFORM_BITS for index in range(count)]
    is_on = np.array(coins) < probability
    assert abs(is_on.mean() - probability) < 0.04
    assert np.array_equal(token_ids, np.where(is_on, on, off))
    assert 0 in off
    assert 0 not in on


def test_thresholds_of_rows_whose_coin_says_no_are_off():
    rng = random.Random(5)
    seeds = [rng.getrandbits(64) for _ in range(50)]
    rows = rows_of(50, CPU, **OFF, xtc_probability=0.5, seed=seeds)
    thresholds = set(rows.xtc_threshold.tolist())
    assert thresholds == {0.1, NO_XTC}
    assert rows.truncates_more


def test_top_n_sigma_keeps_the_same_at_every_temperature(seed):
    logits = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
    kept = [
        np.flatnonzero(defined(logits, {"top_n_sigma": 1.5, "temperature": temperature}))
        for temperature in (0.5, 1.0, 8.0)
    ]
    assert np.array_equal(kept[0], kept[1])
    assert np.array_equal(kept[0], kept[2])
    drawn = draw(logits, 800, top_n_sigma=1.5, temperature=50.0)
    assert set(drawn.tolist()) <= {*kept[0].tolist()}
    assert len({*drawn.tolist()}) > len(kept[0]) / 2
