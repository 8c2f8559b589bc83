import random

import pytest
import torch

from pagoda_kernels import plan_attention
from pagoda_kernels.attention.cpu_plan import SCRATCH_BYTES, gathered_length

CPU = torch.device("cpu")


def plan(seqlens_q, context_lens, block_tables, block_size=16):
    return plan_attention(
        seqlens_q=seqlens_q,
        context_lens=context_lens,
        block_tables=block_tables,
        block_size=block_size,
        device=CPU,
    )


def draw_lists(seed, block_size):
    rng = random.Random(seed)
    new = [rng.choice([1, 1, 2, 63, 127]) for _ in range(rng.randint(1, 9))]
    context = [n + rng.choice([0, 1, 63, 500]) for n in new]
    tables = [[rng.randrange(1000) for _ in range(-(-n // block_size))] for n in context]
    return new, context, tables


@pytest.mark.parametrize("block_size", [1, 16, 128])
def test_gives_every_new_token_its_slot(seed, block_size):
    new, context, tables = draw_lists(seed, block_size)
    naive = [
        table[position // block_size] * block_size + position % block_size
        for n, end, table in zip(new, context, tables, strict=True)
        for position in range(end - n, end)
    ]
    assert plan(new, context, tables, block_size).slot_mapping.tolist() == naive


def test_keeps_lengths_on_host_and_device():
    batch = plan([3, 1], [20, 17], [[5, 6], [7, 9]])
    assert batch.cu_seqlens_q.tolist() == [0, 3, 4]
    assert batch.context_lens.tolist() == [20, 17]
    assert batch.seqlens_q_host == (3, 1)
    assert batch.context_lens_host == (20, 17)
    assert batch.block_tables.tolist() == [[5, 6], [7, 9]]
    assert {batch.cu_seqlens_q.dtype, batch.block_tables.dtype} == {torch.int32}
    assert batch.slot_mapping.dtype == torch.int64


def test_ignores_blocks_beyond_the_context():
    batch = plan([1, 1], [16, 17], [[4, 99, 98], (5, 6, 97)])
    assert batch.block_tables.tolist() == [[4, 0], [5, 6]]


def test_an_empty_step_has_no_tokens():
    batch = plan([], [], [])
    assert batch.slot_mapping.shape == (0,)
    assert batch.cu_seqlens_q.tolist() == [0]


@pytest.mark.parametrize(
    ("seqlens_q", "context_lens", "block_tables", "message"),
    [
        ([1], [1, 2], [[0]], "expected as many seqlens_q as context_lens .* got 1, 2, 1"),
        ([0], [4], [[0]], "sequence 0: expected 1 <= seqlen_q <= 4, got 0"),
        ([5], [4], [[0]], "sequence 0: expected 1 <= seqlen_q <= 4, got 5"),
        ([1], [17], [[0]], "sequence 0: expected >= 2 blocks for 17 tokens, got 1"),
    ],
)
def test_says_what_does_not_fit(seqlens_q, context_lens, block_tables, message):
    with pytest.raises(ValueError, match=message):
        plan(seqlens_q, context_lens, block_tables)


def test_gathered_length_covers_and_wastes_little():
    for num_tokens in range(1, 5000):
        length = gathered_length(num_tokens)
        assert num_tokens <= length <= max(num_tokens + 31, num_tokens * 5 // 4)


def test_few_lengths_are_gathered():
    assert len({gathered_length(n) for n in range(1, 8193)}) <= 32


@pytest.mark.parametrize("window", [None, 1, 100])
def test_decode_groups_hold_every_decode_once(seed, window):
    new, context, tables = draw_lists(seed, 16)
    batch = plan(new, context, tables)
    starts = batch.cu_seqlens_q.tolist()
    groups = batch.cpu_plan.decode_groups(512, window)
    rows = sorted(row for group in groups for row in group.rows.tolist())
    assert rows == [start for start, n in zip(starts, new, strict=False) if n == 1]


def test_decode_groups_stay_within_scratch():
    batch = plan([1] * 40, [500] * 40, [list(range(32))] * 40)
    token_bytes = 2048
    groups = batch.cpu_plan.decode_groups(token_bytes, None)
    assert len(groups) > 1
    assert all(len(group.slots) * token_bytes <= SCRATCH_BYTES for group in groups)


def test_padding_repeats_a_slot_of_the_same_sequence():
    batch = plan([1], [5], [[3]])
    (group,) = batch.cpu_plan.decode_groups(512, None)
    assert set(group.slots.tolist()) == {48, 49, 50, 51, 52}
    assert group.is_padding.sum() == group.num_tokens - 5


def test_layers_share_what_was_built():
    batch = plan([1, 40], [5, 40], [[3], [1, 2, 4]])
    built = batch.cpu_plan
    assert built.decode_groups(512, None) is built.decode_groups(512, None)
    assert built.prefill_spans(None) is built.prefill_spans(None)
    assert built.prefill_spans(8) is not built.prefill_spans(None)
