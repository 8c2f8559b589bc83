"""How sequences are cut: what the host bounds, what the device finds, and that nothing is lost."""

import random

import pytest
import torch
import triton
import triton.language as tl
from support.paged_case import FP32_AND_BF16, make_case

from pagoda_kernels.attention.triton import decode as attention_decode
from pagoda_kernels.attention.triton import split_slots, splits
from pagoda_kernels.attention.triton.decode import decode
from pagoda_kernels.attention.triton.split_slots import place_of
from pagoda_kernels.attention.triton.splits import chosen_splits, invariant_splits, shared_splits

GPU_OR_CPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H200_PROCESSORS = 132


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    """Look at few sequences at once, so that few are many; compiled kernels cannot be changed."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(split_slots, "BLOCK_S", tl.constexpr(8))


@triton.jit
def place_kernel(
    out_ptr, cu_seqlens_q_ptr, context_lens_ptr, num_seqs, per_seq, share, most, least,
    WINDOW: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write what `place_of` says of every slot."""
    slot = tl.program_id(0)
    seq, split, tokens = place_of(
        slot, cu_seqlens_q_ptr, context_lens_ptr, num_seqs,
        per_seq, share, most, least, WINDOW, BLOCK_N,
    )  # fmt: skip
    tl.store(out_ptr + 3 * slot, seq)
    tl.store(out_ptr + 3 * slot + 1, split)
    tl.store(out_ptr + 3 * slot + 2, tokens)


def places(chosen, new, context, window=0, block_n=64):
    """(sequence, split, least) of every slot."""
    starts = torch.tensor([0, *new], device=GPU_OR_CPU).cumsum(0).int()
    lengths = torch.tensor(context, dtype=torch.int32, device=GPU_OR_CPU)
    out = torch.zeros(chosen.num_slots, 3, dtype=torch.int32, device=GPU_OR_CPU)
    place_kernel[(chosen.num_slots,)](
        out, starts, lengths, len(new), *chosen[1:], WINDOW=window, BLOCK_N=block_n
    )
    return out.tolist()


def naive_places(chosen, new, context, window=0, block_n=64):
    """What the device should find, one sequence at a time."""
    tokens = [
        (min(n, window) if window else n) if count == 1 else 0
        for n, count in zip(context, new, strict=True)
    ]
    least = max(chosen.min_tokens, -(-sum(tokens) // chosen.share))
    found = []
    for seq, length in enumerate(tokens):
        if new[seq] == 1:
            size = -(-length // -(-length // max(-(-length // chosen.most), least)))
            size = -(-size // block_n) * block_n
            found += [[seq, split, least] for split in range(-(-length // size))]
    return found


@pytest.mark.parametrize("window", [0, 700])
def test_slots_are_shared_out_by_length(seed, window):
    rng = random.Random(seed)
    for _ in range(4):
        num_seqs = rng.choice([1, 3, 7, 8, 17])
        new = [rng.choice([1, 1, 1, 5]) for _ in range(num_seqs)]
        context = [rng.choice([5, 400, 3000, 100_000]) for _ in range(num_seqs)]
        chosen = shared_splits(num_seqs, 8, max(context), rng.choice([12, H200_PROCESSORS]))
        if not chosen.share:
            continue
        want = naive_places(chosen, new, context, window)
        got = places(chosen, new, context, window)
        assert len(want) <= chosen.num_slots
        assert got[: len(want)] == want
        assert all(seq == -1 for seq, _, _ in got[len(want) :])


def test_totals_beyond_32_bits_do_not_overflow():
    chosen = shared_splits(3, 8, 10**9, H200_PROCESSORS)
    new, context = [1] * 3, [10**9] * 3
    want = naive_places(chosen, new, context)
    assert places(chosen, new, context)[: len(want)] == want


def test_a_long_sequence_is_cut_though_its_neighbours_are_short():
    context = [131072] + [1024] * 35
    chosen = shared_splits(36, 8, 131072, H200_PROCESSORS)
    found = [place for place in places(chosen, [1] * 36, context) if place[0] == 0]
    assert len(found) >= 20


@pytest.mark.parametrize("num_seqs", [1, 8])
@pytest.mark.parametrize("context", [100, 1024, 5000])
def test_a_bound_far_above_the_lengths_changes_no_cut(num_seqs, context):
    new, lengths = [1] * num_seqs, [context] * num_seqs
    exact = shared_splits(num_seqs, 8, context, H200_PROCESSORS)
    bounded = shared_splits(num_seqs, 8, 131072, H200_PROCESSORS)
    live = [place[:2] for place in places(bounded, new, lengths) if place[0] >= 0]
    if exact.share:
        assert live == [place[:2] for place in places(exact, new, lengths) if place[0] >= 0]
    else:
        assert live == [[seq, 0] for seq in range(num_seqs)]
    idle = bounded.num_slots - len(live)
    assert idle * 8 <= 2 * H200_PROCESSORS  # programs that find nothing to do, all KV heads


@pytest.mark.parametrize("num_heads", [4, 8, 32])
def test_few_sequences_fill_the_processors(num_heads):
    chosen = shared_splits(1, num_heads, 131072, H200_PROCESSORS)
    found = [place for place in places(chosen, [1], [131072]) if place[0] == 0]
    assert len(found) * num_heads >= 1.5 * H200_PROCESSORS


def test_enough_sequences_are_not_split():
    assert not shared_splits(33, 8, 8192, H200_PROCESSORS).may_split
    assert shared_splits(32, 8, 8192, H200_PROCESSORS).may_split
    assert not shared_splits(1, 8, 256, H200_PROCESSORS).may_split
    assert shared_splits(33, 8, 131072, H200_PROCESSORS).may_split


def test_splits_of_the_invariant_mode_depend_on_nothing_but_length():
    for num_seqs in (1, 4096):
        chosen = invariant_splits(num_seqs, 700)
        assert chosen == splits.Splits(2 * num_seqs, 2, 0, 32, 512)
    assert invariant_splits(1, 10**6).per_seq == 32


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "num"), [(1, 64, 1), (1, 8192, 32), (1, 65536, 33), (64, 8192, 1)]
)
def test_even_splits_fill_the_processors_but_not_more(num_tokens, max_tokens, num):
    assert chosen_splits(num_tokens, 8, max_tokens, H200_PROCESSORS).per_seq == num


@pytest.mark.parametrize("window", [None, 150])
@FP32_AND_BF16
def test_attends_what_was_shared_out(dtype, window, seed, monkeypatch, assert_close):
    rng = random.Random(seed)
    monkeypatch.setattr(splits, "MIN_SPLIT_TOKENS", 64)
    monkeypatch.setattr(attention_decode, "num_processors", lambda _: 8)
    context = [900, 1, *(rng.randint(1, 200) for _ in range(4)), 64]
    new = [1] * 6 + [3]
    case = make_case(new, context, heads=(4, 2), dtype=dtype, device=GPU_OR_CPU)
    out = torch.full_like(case.q, float("nan"))
    decode(case.q, case.k_cache, case.v_cache, case.batch, case.rule(window), out)
    assert_close(out[:6], case.want(sliding_window=window)[:6])
    assert out[6:].isnan().all()
