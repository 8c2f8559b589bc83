import random

import pytest
import torch
from support.sampling_rows import rows_of

from pagoda_kernels.native.library import native_library
from pagoda_kernels.sampling import reference as reference_sampling
from pagoda_kernels.sampling.cpu import sample_by_numpy
from pagoda_kernels.sampling.philox import COIN, philox_mantissa
from pagoda_kernels.sampling.rows import plan_sampling, sampling_column
from pagoda_kernels.sampling.sample_tokens import (
    largest_tokens,
    penalise_logits,
    sample_tokens,
)
from pagoda_kernels.sampling.triton import penalise_logits as triton_penalties
from pagoda_kernels.sampling.triton import sample_tokens as triton_sampling

SAMPLE = {
    "native": sample_tokens,
    "numpy": sample_by_numpy,
    "triton": triton_sampling.sample_tokens,
}
CPU = torch.device("cpu")


@pytest.fixture(params=["native", "numpy", "triton"])
def path(request):
    """Implementation under test."""
    if request.param == "native" and native_library() is None:
        pytest.skip("this processor has no native operators")
    return request.param


@pytest.fixture(params=[penalise_logits, triton_penalties.penalise_logits], ids=["cpu", "triton"])
def penalise(request):
    """Implementation under test."""
    return request.param


def draw_columns(num_rows, seed):
    """Random parameters, every kind of them on and off."""
    rng = random.Random(seed)
    choices = {
        "temperature": lambda: rng.choice([0.0, 0.01, 0.7, 1.0, 2.5]),
        "top_k": lambda: rng.choice([0, 0, 1, 5, 50, 10**6]),
        "top_p": lambda: rng.choice([1.0, 1.0, 0.0, 0.3, 0.9, 0.999]),
        "min_p": lambda: rng.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        "seed": lambda: rng.getrandbits(64),
        "index": lambda: rng.getrandbits(rng.choice([4, 32])),
    }
    return {name: [make() for _ in range(num_rows)] for name, make in choices.items()}


def draw_more_columns(num_rows, seed):
    """As `draw_columns`, with the truncations that a kernel of their own does."""
    rng = random.Random(seed)
    choices = {
        "top_n_sigma": lambda: rng.choice([0.0, 0.0, 0.0, 0.5, 1.0, 3.0]),
        "typical_p": lambda: rng.choice([1.0, 1.0, 1.0, 0.1, 0.5, 0.95]),
        "xtc_threshold": lambda: rng.choice([0.0, 0.02, 0.1, 0.5]),
        "xtc_probability": lambda: rng.choice([0.0, 0.0, 0.5, 1.0]),
    }
    more = {name: [make() for _ in range(num_rows)] for name, make in choices.items()}
    return draw_columns(num_rows, seed) | more


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles to a row, also in the interpreter."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(triton_sampling, "BLOCK_V", 128)
        monkeypatch.setattr(triton_penalties, "BLOCK_V", 64)


@pytest.mark.parametrize("vocab_size", [1, 63, 127, 300, 700])
def test_matches_reference(path, device, seed, vocab_size):
    logits = 3 * torch.randn(10, vocab_size, device=device)
    rows = rows_of(10, device, **draw_columns(10, seed))
    token_ids, is_valid = SAMPLE[path](logits, rows)
    want, _ = reference_sampling.sample_tokens(logits, rows)
    assert token_ids.tolist() == want
    assert token_ids.dtype == torch.int64
    assert is_valid.all()


def test_matches_reference_however_many_tokens_are_kept(path, device, seed):
    """A tile of the likeliest tells, some tiles of them do, or only the whole row."""
    top_k = [20, 100, 200, 400, 600, 1500, 300, *[0] * 6]
    top_p = [*[1.0] * 6, 0.8, 0.05, 0.2, 0.4, 0.6, 0.8, 0.97]
    logits = torch.randn(13, 2000, device=device)
    rows = rows_of(13, device, top_k=top_k, top_p=top_p, seed=range(seed, seed + 13))
    token_ids, is_valid = SAMPLE[path](logits, rows)
    assert token_ids.tolist() == reference_sampling.sample_tokens(logits, rows)[0]
    assert is_valid.all()


@pytest.mark.parametrize("vocab_size", [1, 63, 300])
def test_truncations_match_reference(path, device, dtype, seed, vocab_size):
    logits = (3 * torch.randn(5, vocab_size + 9, device=device)).to(dtype)[:, 4 : vocab_size + 4]
    logits[:, 1::9] = float("-inf")
    columns = draw_more_columns(5, seed)
    rows = rows_of(5, device, **columns)
    token_ids, is_valid = SAMPLE[path](logits, rows)
    assert token_ids.tolist() == reference_sampling.sample_tokens(logits, rows)[0]
    assert is_valid.all()
    for row in range(5):
        mine = {name: values[row : row + 1] for name, values in columns.items()}
        alone, _ = SAMPLE[path](logits[row : row + 1], rows_of(1, device, **mine))
        assert alone.tolist() == token_ids[row : row + 1].tolist()


def test_truncation_says_which_rows_are_no_distribution(path, device):
    logits = torch.randn(4, 70, device=device)
    logits[0, 69] = float("nan")
    logits[1] = float("-inf")
    rows = rows_of(4, device, top_n_sigma=[1.0, 1.0, 1.0, 0.0], typical_p=[0.5] * 3 + [1.0])
    token_ids, is_valid = SAMPLE[path](logits, rows)
    assert is_valid.tolist() == [False, False, True, True]
    assert token_ids[2:].tolist() == reference_sampling.sample_tokens(logits, rows)[0][2:]


def test_takes_every_dtype_and_rows_apart(path, device, dtype, seed):
    logits = torch.randn(9, 300, device=device).to(dtype)[:, 20:151]
    rows = rows_of(9, device, **draw_columns(9, seed))
    before = logits.clone()
    token_ids, _ = SAMPLE[path](logits, rows)
    assert token_ids.tolist() == reference_sampling.sample_tokens(logits, rows)[0]
    assert torch.equal(logits, before)


def test_a_row_does_not_depend_on_the_others(path, device, seed):
    logits = torch.randn(8, 127, device=device)
    columns = draw_columns(8, seed)
    together, _ = SAMPLE[path](logits, rows_of(8, device, **columns))
    alone = []
    for row in range(8):
        mine = {name: values[row : row + 1] for name, values in columns.items()}
        token_ids, _ = SAMPLE[path](logits[row : row + 1], rows_of(1, device, **mine))
        alone += token_ids.tolist()
    assert together.tolist() == alone


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 1.0},
        {"top_n_sigma": 0.1},
        {"typical_p": 0.3},
        {"xtc_threshold": 0.01, "xtc_probability": 1.0, "min_p": 0.1},
    ],
)
def test_equals_are_kept_together(path, device, options):
    logits = torch.tensor([2.0, -1.0, 2.0, 2.0, -3.0, 2.0, 2.0], device=device).repeat(12, 1)
    rows = rows_of(12, device, index=range(12), **options)
    token_ids, _ = SAMPLE[path](logits, rows)
    assert set(token_ids.tolist()) <= {0, 2, 3, 5, 6}
    assert len(set(token_ids.tolist())) > 2


@pytest.mark.parametrize("options", [{"top_k": 60}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.6}])
@pytest.mark.parametrize("num_levels", [2, 5, 50])
def test_equals_at_a_threshold_are_kept_together(path, device, options, num_levels):
    """Whatever part of the vocabulary a threshold is looked for in."""
    levels = torch.randint(num_levels, (2, 300), device=device)
    rows = rows_of(2, device, seed=range(2), index=range(2), **options)
    logits = levels.float() * (4 / num_levels)
    token_ids, _ = SAMPLE[path](logits, rows)
    assert token_ids.tolist() == reference_sampling.sample_tokens(logits, rows)[0]


def test_masked_logits_are_never_drawn(path, device):
    logits = torch.randn(6, 150, device=device)
    logits[:, ::2] = float("-inf")
    token_ids, is_valid = SAMPLE[path](logits, rows_of(6, device, index=range(6), top_k=90))
    assert all(token % 2 for token in token_ids.tolist())
    assert is_valid.all()


def test_says_which_rows_are_no_distribution(path, device):
    logits = torch.randn(6, 70, device=device)
    logits[0, 69] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = float("-inf")
    logits[3] = float("nan")
    rows = rows_of(6, device, temperature=[1.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    token_ids, is_valid = SAMPLE[path](logits, rows)
    assert is_valid.tolist() == [False] * 4 + [True] * 2
    assert token_ids[:4].tolist() == [0] * 4


def test_greedy_takes_the_first_of_the_largest(path, device):
    logits = torch.zeros(2, 130, device=device)
    logits[0, [5, 70, 129]] = 4.0
    token_ids, _ = SAMPLE[path](logits, rows_of(2, device, temperature=0.0))
    assert token_ids.tolist() == [5, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_is_what_a_greedy_row_takes(device, seed, dtype):
    torch.manual_seed(seed)
    logits = torch.randn(9, 333, device=device).to(dtype)
    logits[1, 200] = logits[1].max()  # of equals the first
    logits[2, 5] = float("nan")
    logits[3] = float("-inf")
    logits[4, 7] = float("inf")
    before = logits.clone()
    found = largest_tokens(logits)
    wanted = sample_tokens(logits, rows_of(9, device, temperature=0.0))
    assert found.is_valid.tolist() == [True, True, False, False, False, *[True] * 4]
    assert found.is_valid.equal(wanted.is_valid)
    assert found.token_ids.equal(wanted.token_ids)
    assert logits[0].equal(before[0]), "read alone"


def test_a_row_of_fp16_is_drawn_as_beside_a_neighbour_that_widens_it():
    """The library and numpy differ in the seventh of these rows; only one of them may draw it."""
    torch.manual_seed(532)
    logits = torch.randn(16, 33_001).half()
    rows = rows_of(16, torch.device("cpu"), top_p=0.95, seed=range(16))
    assert sample_tokens(logits, rows).token_ids.equal(
        sample_tokens(logits.float(), rows).token_ids
    )


@pytest.mark.parametrize(
    "choose", [largest_tokens, lambda x: sample_tokens(x, rows_of(4, x.device))]
)
def test_rows_that_are_not_dense_are_refused(choose, device):
    with pytest.raises(ValueError, match="logits: expected stride 1 in the last dim, got 2"):
        choose(torch.randn(4, 200, device=device)[:, ::2])


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 1.0}])
def test_draws_the_bucket_of_the_philox_uniform(path, device, seed, options):
    rng = random.Random(seed)
    seeds = [0, 2**64 - 1, 2**63, *(rng.getrandbits(64) for _ in range(5))]
    indices = [0, 2**32 - 1, 2**31, *(rng.getrandbits(32) for _ in range(5))]
    rows = rows_of(8, device, seed=seeds, index=indices, **options)
    token_ids, _ = SAMPLE[path](torch.zeros(8, 256, device=device), rows)  # all kept: equals
    numbers = map(reference_sampling.philox_uniform, seeds, indices)
    assert token_ids.tolist() == [int(number * 256) for number in numbers]


@pytest.mark.filterwarnings("ignore:overflow")  # the interpreter's
def test_temperatures_end_where_float32_does(path, device):
    logits = torch.randn(8, 150, device=device)
    logits[:, ::2] = float("-inf")
    temperatures = [1e-50, 1e-38, 1e39, float("inf")] * 2
    rows = rows_of(8, device, temperature=temperatures, top_p=[1.0] * 4 + [0.9] * 4, index=range(8))
    token_ids, is_valid = SAMPLE[path](logits, rows)
    want, _ = reference_sampling.sample_tokens(logits, rows)
    assert token_ids.tolist() == want
    assert torch.equal(token_ids[[0, 1, 4, 5]], logits.argmax(1)[[0, 1, 4, 5]])
    assert all(token % 2 for token in want)
    assert is_valid.all()


def test_frequencies_follow_the_distribution(path, device):
    num_draws = 128
    probs = torch.tensor([0.5, 0.25, 0.125, 0.125], device=device)
    rows = rows_of(num_draws, device, seed=7, index=range(num_draws))
    token_ids, _ = SAMPLE[path](probs.log().repeat(num_draws, 1), rows)
    share = torch.bincount(token_ids.cpu(), minlength=4) / num_draws
    assert torch.allclose(share, probs.cpu(), atol=0.2)


def test_uniforms_are_philox_s():
    # Known answer of Random123: counter 0, key 0 -> 6627e8d5 e169c58d ...
    want = (0x6627E8D5 >> 5 << 26) | (0xE169C58D >> 6)
    assert philox_mantissa(0, 0) == want
    assert reference_sampling.philox_uniform(0, 0) == want * 2.0**-53


def test_uniforms_match_the_reference(seed):
    rng = random.Random(seed)
    for _ in range(99):
        key, index = rng.getrandbits(64), rng.getrandbits(32)
        signed = key - 2**64 if key >> 63 else key  # as the rows hold it
        want = reference_sampling.philox_uniform(key, index)
        assert philox_mantissa(signed, index) * 2.0**-53 == want
        coin = reference_sampling.philox_uniform(key, index, 1)
        assert philox_mantissa(signed, index, COIN) * 2.0**-53 == coin != want


def draw_penalties(num_rows, device):
    repetition = torch.rand(num_rows, device=device) + 0.5
    frequency, presence = torch.randn(2, num_rows, device=device)
    return repetition, frequency, presence


@pytest.mark.parametrize("count_dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("vocab_size", [1, 63, 127])
def test_penalties_match_reference(penalise, device, dtype, vocab_size, count_dtype, assert_close):
    logits = (3 * torch.randn(5, vocab_size + 9, device=device)).to(dtype)[:, 4 : vocab_size + 4]
    counts = torch.randint(0, 4, (5, vocab_size + 1), device=device).to(count_dtype)[:, 1:]
    in_prompt = torch.rand(5, vocab_size, device=device) < 0.3
    arguments = logits, counts, in_prompt, *draw_penalties(5, device)
    got = penalise(*arguments)
    assert got.is_contiguous()
    assert_close(got, reference_sampling.penalise_logits(*arguments))


def test_penalties_that_are_off_change_nothing(penalise, device):
    logits = torch.randn(3, 100, device=device)
    on, off = torch.ones(3, device=device), torch.zeros(3, device=device)
    counts = torch.ones(3, 100, device=device)
    assert torch.equal(penalise(logits, counts, counts > 0, on, off, off), logits)


def test_a_plan_is_one_copy(device):
    rows = rows_of(3, device, seed=[1, 2**64 - 1, 3], top_p=0.5)
    parts = (
        rows.temperature, rows.min_p, rows.top_n_sigma, rows.xtc_threshold, rows.top_k, rows.top_p,
        rows.typical_p, rows.seeds, rows.indices,
    )  # fmt: skip
    storages = {part.untyped_storage().data_ptr() for part in parts}
    assert storages == {rows.storage.untyped_storage().data_ptr()}
    assert rows.seeds.tolist() == [1, -1, 3]
    assert rows.top_p.tolist() == [2**61] * 3


def test_no_rows_give_no_tokens(path, device):
    token_ids, is_valid = SAMPLE[path](torch.ones(0, 9, device=device), rows_of(0, device))
    assert token_ids.shape == is_valid.shape == (0,)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"temperature": -1.0}, r"temperature: expected 0.0 to inf, got -1.0"),
        ({"temperature": float("nan")}, r"temperature: expected 0.0 to inf, got nan"),
        ({"top_p": 1.1}, r"top_p: expected 0.0 to 1.0, got 1.1"),
        ({"top_n_sigma": -1.0}, r"top_n_sigma: expected 0.0 to inf, got -1.0"),
        ({"typical_p": 1.1}, r"typical_p: expected 0.0 to 1.0, got 1.1"),
        ({"xtc_probability": 2.0}, r"xtc_probability: expected 0.0 to 1.0, got 2.0"),
        ({"top_k": -1}, r"top_k: expected 0 to 2147483647, got -1"),
        ({"seed": 2**64}, r"seed: expected 0 to 18446744073709551615"),
    ],
)
def test_a_column_says_what_is_out_of_range(parameter, message):
    with pytest.raises(ValueError, match=message):
        sampling_column(**parameter)


def test_a_plan_says_which_index_is_out_of_range():
    with pytest.raises(ValueError, match="indices: expected 0 to 4294967295, got 4294967296"):
        rows_of(2, CPU, index=[0, 2**32])
    with pytest.raises(ValueError, match="expected an index for each of 1 rows, got 2"):
        plan_sampling([sampling_column()], [1, 2], CPU)


def test_says_what_does_not_fit():
    rows = rows_of(2, CPU)
    with pytest.raises(ValueError, match=r"rows\.seeds: expected shape \[3\], got \[2\]"):
        sample_tokens(torch.ones(3, 9), rows)
    with pytest.raises(ValueError, match="logits: expected a vocabulary of at least 1, got 0"):
        sample_tokens(torch.ones(2, 0), rows)
    ones = torch.ones(2)
    with pytest.raises(ValueError, match=r"in_prompt: expected torch\.bool on cpu, got"):
        penalise_logits(torch.ones(2, 9), torch.ones(2, 9), torch.ones(2, 9), ones, ones, ones)
    with pytest.raises(ValueError, match=r"frequency: expected fp32 on cpu, got torch\.float64"):
        penalise_logits(
            torch.ones(2, 9), torch.ones(2, 9), torch.ones(2, 9) > 0, ones, ones.double(), ones
        )
