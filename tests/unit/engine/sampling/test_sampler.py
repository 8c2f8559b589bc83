import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pagoda_engine import SamplingParams
from pagoda_engine.sampling import (
    SampledToken,
    SampleRow,
    SamplingState,
    TokenCounts,
    count_tokens,
    plan_rows,
    to_tokens,
)
from pagoda_engine.sampling import sample as sample_on_device
from pagoda_engine.sampling.sampler import MIN_LOGPROB
from pagoda_engine.token_mask import token_bits
from pagoda_kernels.sampling.reference import philox_uniform

CPU = torch.device("cpu")
VOCAB_SIZE = 40
EOS = 39


def make_row(
    prompt: Sequence[int] = (1,),
    output: Sequence[int] = (),
    vocab_size: int = VOCAB_SIZE,
    allowed: Sequence[int] | None = None,
    **params: Any,
) -> SampleRow:
    state = SamplingState(
        SamplingParams(**{"max_tokens": 1000, **params}),
        eos_token_ids={EOS},
    )
    if state.has_penalties:
        state.counts = count_tokens(state.params, prompt, output, vocab_size, CPU)
    words = None if allowed is None else token_bits(allowed, vocab_size)
    changes = state.repeat_changes([*prompt, *output], vocab_size)
    return SampleRow(state, len(output), words, changes)


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    return to_tokens(sample_on_device(logits, plan_rows(rows, CPU)), rows)


def make_logits(seed: int = 0, rows: int = 1, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def choose(logits: torch.Tensor, row: SampleRow) -> int:
    return sample(logits, [row])[0].token_id


def draws(logits: torch.Tensor, count: int = 1000, **params: Any) -> list[int]:
    """Draw once for each of many seeds."""
    rows = [make_row(seed=seed, vocab_size=logits.shape[1], **params) for seed in range(count)]
    return [s.token_id for s in sample(logits.expand(count, -1), rows)]


def greedy(logits: torch.Tensor, **params: Any) -> int:
    return choose(logits, make_row(temperature=0.0, **params))


def test_greedy_takes_the_likeliest() -> None:
    logits = make_logits()
    assert greedy(logits) == int(logits.argmax())


def test_greedy_among_random_neighbours_takes_the_likeliest() -> None:
    logits = make_logits(rows=3)
    rows = [make_row(), make_row(temperature=0.0), make_row(top_p=0.5)]
    assert sample(logits, rows)[1].token_id == int(logits[1].argmax())


def test_logits_are_not_changed() -> None:
    logits = make_logits()
    before = logits.clone()
    draws(
        logits,
        count=2,
        top_k=3,
        top_p=0.9,
        min_p=0.01,
        presence_penalty=1.0,
        logit_bias={1: 2.0},
        min_tokens=2,
    )
    assert torch.equal(logits, before)


@pytest.mark.slow
def test_draws_follow_the_distribution() -> None:
    logits = make_logits()
    counts = np.bincount(draws(logits, count=8000), minlength=VOCAB_SIZE)
    expected = torch.softmax(logits[0].double(), -1).numpy() * 8000
    common = expected > 5
    chi_squared = float((((counts - expected) ** 2) / expected)[common].sum())
    assert chi_squared < 2 * common.sum()


def test_draw_inverts_the_cumulative_distribution() -> None:
    logits = make_logits()
    probs = torch.softmax(logits[0].double(), -1)
    target = philox_uniform(17, 2)
    expected = int((probs.cumsum(-1) > target).nonzero()[0, 0])
    assert choose(logits, make_row(seed=17, output=(0, 0))) == expected


@pytest.mark.slow
def test_temperature_sharpens_and_flattens() -> None:
    logits = make_logits()
    best = int(logits.argmax())
    shares = [draws(logits, temperature=t).count(best) for t in (0.3, 1.0, 3.0)]
    assert shares == sorted(shares, reverse=True)
    probability = float(torch.softmax(logits[0] / 3.0, -1)[best])
    assert shares[2] == pytest.approx(1000 * probability, abs=60)


def test_tiny_temperature_is_greedy() -> None:
    logits = make_logits() * 50
    assert set(draws(logits, count=50, temperature=1e-30)) == {int(logits.argmax())}


def test_top_k_keeps_the_k_likeliest() -> None:
    logits = make_logits()
    assert set(draws(logits, top_k=4, temperature=2.0)) == set(logits[0].topk(4).indices.tolist())


def test_top_k_beyond_the_vocabulary_is_off() -> None:
    logits = make_logits()
    assert draws(logits, count=50, top_k=VOCAB_SIZE + 5) == draws(logits, count=50)


def test_top_k_keeps_ties_together() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    assert set(draws(logits, count=300, top_k=2)) == {1, 2, 3}


@pytest.mark.slow
def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert set(draws(logits, top_p=0.49)) == {0}
    assert set(draws(logits, top_p=0.51)) == {0, 1}
    assert set(draws(logits, top_p=0.79)) == {0, 1}
    assert set(draws(logits, top_p=0.81)) == {0, 1, 2}


def test_top_p_is_of_what_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert set(draws(logits, top_k=2, top_p=0.56)) == {0}
    assert set(draws(logits, top_k=2, top_p=0.58)) == {0, 1}


@pytest.mark.slow
def test_top_p_in_a_large_flat_vocabulary() -> None:
    logits = torch.linspace(0, 0.001, 3000)[None]
    chosen = draws(logits, top_p=0.5)
    assert min(chosen) >= 1490
    assert len(set(chosen)) > 400


@pytest.mark.slow
def test_min_p_drops_what_is_too_unlikely() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert set(draws(logits, min_p=0.2)) == {0, 1, 2}
    assert set(draws(logits, min_p=0.59)) == {0, 1}
    assert set(draws(logits, min_p=1.0)) == {0}


def test_repetition_penalty_covers_prompt_and_output() -> None:
    logits = torch.tensor([[4.0, 3.9, 3.8, -1.0]])
    params = {"repetition_penalty": 2.0, "vocab_size": 4}
    assert greedy(logits, prompt=(2,), output=(0,), **params) == 1


def test_repetition_penalty_pushes_negative_logits_down() -> None:
    logits = torch.tensor([[-1.0, -1.5]])
    assert greedy(logits, prompt=(0,), repetition_penalty=2.0, vocab_size=2) == 1


def test_frequency_penalty_counts_the_output_only() -> None:
    logits = torch.tensor([[3.0, 2.5, 0.0]])
    params = {"frequency_penalty": 0.2, "vocab_size": 3}
    assert greedy(logits, prompt=(0, 0, 0, 0), **params) == 0
    assert greedy(logits, output=(0, 0), **params) == 0
    assert greedy(logits, output=(0, 0, 0), **params) == 1


def test_presence_penalty_counts_a_token_once() -> None:
    logits = torch.tensor([[3.0, 2.5, 0.0]])
    params = {"vocab_size": 3}
    assert greedy(logits, output=(0,) * 9, presence_penalty=0.4, **params) == 0
    assert greedy(logits, output=(0,), presence_penalty=0.6, **params) == 1


def test_penalties_match_counting_from_the_start() -> None:
    logits = make_logits(rows=1)
    params = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.3}
    row = make_row(prompt=(3, 4), temperature=0.0, **params)
    output: list[int] = []
    for _ in range(30):
        token = choose(logits, row)  # counts the token too
        assert token == greedy(logits, prompt=(3, 4), output=tuple(output), **params)
        output.append(token)
    assert len(set(output)) > 5


def test_counts_on_the_device_choose_the_same_tokens() -> None:
    """What a GPU has: vectors of the vocabulary's size."""
    rng = random.Random(5)
    logits = make_logits(rows=30).bfloat16()
    rows, twins = [], []
    for seed in range(30):
        prompt, output = rng.choices(range(VOCAB_SIZE), k=6), rng.choices(range(6), k=9)
        params = {
            "seed": seed,
            "num_logprobs": 1,
            "repetition_penalty": rng.choice([1.0, 1.7, 0.6]),
            "frequency_penalty": rng.uniform(-0.5, 1),
            "presence_penalty": rng.choice([0.0, 0.9]),
        }
        row = make_row(prompt, output, **params)
        twin = SampleRow(SamplingState(row.state.params, eos_token_ids={EOS}), row.index)
        twin.state.counts = TokenCounts(prompt, output, VOCAB_SIZE, CPU)
        rows.append(row)
        twins.append(twin)
    for index in range(9, 25):
        for row in (*rows, *twins):
            row.index = index
        assert sample(logits, rows) == sample(logits, twins)


def test_a_mask_leaves_the_likeliest_allowed_token() -> None:
    logits = make_logits(rows=2)
    allowed = [4, 9]
    rows = [make_row(temperature=0.0, allowed=allowed), make_row(temperature=0.0)]
    masked, free = sample(logits, rows)
    assert masked.token_id == (4 if logits[0, 4] > logits[0, 9] else 9)
    assert free.token_id == int(logits[1].argmax())
    assert set(draws(logits[:1], count=200, allowed=allowed)) == {4, 9}


@pytest.mark.parametrize("vocab_size", [7, 32, 33, 64, 100])
def test_a_mask_may_leave_any_token_of_any_vocabulary(vocab_size: int) -> None:
    logits = make_logits(rows=vocab_size, vocab_size=vocab_size)
    rows = [
        make_row(temperature=0.0, allowed=[token], vocab_size=vocab_size)
        for token in range(vocab_size)
    ]
    assert [s.token_id for s in sample(logits, rows)] == list(range(vocab_size))


def test_bits_beyond_the_vocabulary_mean_nothing() -> None:
    logits = make_logits(vocab_size=33)
    row = make_row(temperature=0.0, allowed=[7], vocab_size=33)
    assert row.allowed is not None
    row.allowed[1] |= 2
    assert choose(logits, row) == 7


def test_a_mask_goes_with_bias_and_logprobs() -> None:
    logits = make_logits()
    row = make_row(logit_bias={4: 50.0, 5: 90.0}, num_logprobs=1, allowed=[4, EOS])
    sampled = sample(logits, [row])[0]
    assert sampled.token_id == 4
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(float(torch.log_softmax(logits[0], -1)[4]))


def test_logit_bias_is_added() -> None:
    logits = make_logits()
    assert greedy(logits, logit_bias={7: 100.0}) == 7
    best = int(logits.argmax())
    assert greedy(logits, logit_bias={best: -100.0}) == int(logits[0].topk(2).indices[1])


def test_dry_leaves_what_was_not_said_before() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9, 2.8]])
    params = {"vocab_size": 4, "prompt": (2, 3, 1), "output": (0, 2, 3), "dry_allowed_length": 2}
    assert greedy(logits, **params) == 1
    assert greedy(logits, dry_multiplier=0.05, **params) == 1
    assert greedy(logits, dry_multiplier=0.5, **params) == 2
    assert greedy(logits, dry_multiplier=0.5, dry_sequence_breakers=(3,), **params) == 1


def test_penalties_of_repetitions_and_a_bias_of_the_same_token_add_up() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.5]])
    params = {"vocab_size": 3, "prompt": (1, 0), "lz_penalty": 1.0}  # one bit dearer than a literal
    saved = math.log2(3) - 1
    assert greedy(logits, **params) == 2
    assert greedy(logits, logit_bias={1: saved - 0.51}, **params) == 2
    assert greedy(logits, logit_bias={1: saved - 0.49}, **params) == 1


def test_min_tokens_masks_every_stop_token() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, EOS], logits[0, 5], logits[0, 6] = 9.0, 8.0, 7.0
    params = {"min_tokens": 2, "stop_token_ids": (5,)}
    assert greedy(logits, **params) == 6
    assert greedy(logits, output=(0,), **params) == 6
    assert greedy(logits, output=(0, 0), **params) == EOS


def test_min_tokens_lets_an_ignored_eos_pass() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, EOS] = 9.0
    assert greedy(logits, min_tokens=2, ignore_eos=True) == EOS


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = make_logits()
    row = make_row(temperature=0.0, num_logprobs=3, logit_bias={7: 100.0}, repetition_penalty=1.5)
    sampled = sample(logits, [row])[0]
    raw = torch.log_softmax(logits[0], -1)
    assert sampled.logprobs is not None
    assert sampled.logprobs.token_id == sampled.token_id == 7
    assert sampled.logprobs.logprob == pytest.approx(float(raw[7]))
    best = raw.topk(3)
    assert [i for i, _ in sampled.logprobs.top] == best.indices.tolist()
    assert [p for _, p in sampled.logprobs.top] == pytest.approx(best.values.tolist())


def test_logprobs_without_alternatives() -> None:
    sampled = sample(make_logits(rows=2), [make_row(num_logprobs=0), make_row(num_logprobs=2)])
    assert [s.logprobs and len(s.logprobs.top) for s in sampled] == [0, 2]
    assert sample(make_logits(), [make_row()])[0].logprobs is None


def test_logprobs_are_finite() -> None:
    logits = torch.full((1, 4), -math.inf)
    logits[0, 2] = 0.0
    sampled = sample(logits, [make_row(num_logprobs=4, vocab_size=4)])[0]
    assert sampled.token_id == 2
    assert sampled.logprobs is not None
    assert [p for _, p in sampled.logprobs.top] == [0.0, *[MIN_LOGPROB] * 3]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"num_logprobs": 1, "top_p": 0.5}])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_spoil_their_own_row_only(
    params: dict[str, Any], bad: float
) -> None:
    logits = make_logits(rows=2)
    logits[0, 3] = bad
    spoilt, sound = sample(logits, [make_row(**params), make_row(**params)])
    assert not spoilt.is_valid
    assert sound.is_valid
    assert sound.token_id == choose(logits[1:], make_row(**params))


MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "output": (3, 3)},
    {"logit_bias": {3: 4.0}, "presence_penalty": 0.5},
    {"min_tokens": 3, "stop_token_ids": (1, 2)},
    {"num_logprobs": 2},
    {"top_n_sigma": 1.0},
    {"typical_p": 0.5, "top_p": 0.9},
    {"xtc_threshold": 0.05, "xtc_probability": 0.5, "temperature": 1.5},
    {"dry_multiplier": 2.0, "dry_base": 2.0, "output": (3, 4, 5, 3, 4)},
    {"lz_penalty": 0.5, "logit_bias": {3: 1.0, 9: -1.0}, "output": (3, 4, 3)},
]


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 1000])
def test_result_does_not_depend_on_batch_neighbours(vocab_size: int) -> None:
    for round_ in range(20):
        logits = make_logits(seed=round_, rows=len(MIXED), vocab_size=vocab_size)
        alone = [
            sample(logits[i : i + 1], [make_row(seed=round_, vocab_size=vocab_size, **params)])[0]
            for i, params in enumerate(MIXED)
        ]
        rows = [make_row(seed=round_, vocab_size=vocab_size, **params) for params in MIXED]
        together = sample(logits, rows)
        assert [s.token_id for s in together] == [s.token_id for s in alone]


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 3000])
def test_alternatives_do_not_depend_on_batch_neighbours(vocab_size: int) -> None:
    """In bf16 many logits are equal, and which of them are listed is a matter of their ids."""
    nums = [5, 0, 20, 1, 11]
    for round_ in range(10):
        logits = make_logits(seed=round_, rows=len(nums), vocab_size=vocab_size).bfloat16()
        rows = [make_row(num_logprobs=num, vocab_size=vocab_size) for num in nums]
        alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
        assert sample(logits, rows) == alone


def test_the_first_alternative_is_what_greedy_search_takes() -> None:
    logits = make_logits(rows=30, vocab_size=1000).bfloat16()
    logits[:, [800, 70, 400]] = 20.0
    rows = [make_row(temperature=0.0, num_logprobs=2, vocab_size=1000) for _ in logits]
    for sampled in sample(logits, rows):
        assert sampled.logprobs is not None
        assert sampled.token_id == sampled.logprobs.top[0][0] == 70
        assert sampled.logprobs.top[1][0] == 400


def test_bfloat16_logits() -> None:
    logits = make_logits(rows=2).bfloat16()
    sampled = sample(logits, [make_row(temperature=0.0, num_logprobs=1), make_row(top_p=0.9)])
    assert sampled[0].token_id == int(logits[0].argmax())


def test_integer_parameters_mean_the_same_as_floats() -> None:
    logits = make_logits()
    params: dict[str, Any] = {"temperature": 1, "repetition_penalty": 2, "logit_bias": {3: 1}}
    floats = {"temperature": 1.0, "repetition_penalty": 2.0, "logit_bias": {3: 1.0}}
    assert draws(logits, count=100, **params) == draws(logits, count=100, **floats)


def test_logprobs_of_the_tokens_that_a_row_asks_for() -> None:
    logits = make_logits(rows=3)
    rows = [
        make_row(temperature=0.0, num_logprobs=2),
        make_row(temperature=0.0, num_logprobs=3, logprob_token_ids=(5, 7, 9)),
        make_row(temperature=0.0, num_logprobs=1, logprob_token_ids=(EOS,)),
    ]
    found = [token.logprobs for token in sample(logits, rows)]
    expected = torch.log_softmax(logits, dim=-1)
    assert [len(f.top) for f in found if f] == [2, 3, 1]
    asked = {5: expected[1, 5], 7: expected[1, 7], 9: expected[1, 9]}
    assert found[1] is not None
    assert found[2] is not None
    assert dict(found[1].top) == pytest.approx({i: v.item() for i, v in asked.items()})
    assert list(found[1].top) == sorted(found[1].top, key=lambda pair: -pair[1])
    assert dict(found[2].top) == pytest.approx({EOS: expected[2, EOS].item()})
