"""A batch of decodes over buffers that are refilled: what a captured graph replays."""

import random
from dataclasses import replace

import pytest
import torch
from support.paged_case import FP32_AND_BF16, Case, each_token_a_row, make_case

from pagoda_kernels import PAD_SLOT, decode_batch, write_kv
from pagoda_kernels.attention.triton import decode as attention_decode
from pagoda_kernels.kv.triton.write_kv import write_kv as write_kv_triton

WRITE = {"cpu": write_kv, "triton": write_kv_triton}
MAX_CONTEXT = 2048
BLOCK_SIZE = 16


class Buffers:
    """What a graph's owner keeps: rows of padding until a case is filled in."""

    def __init__(self, num_rows, device):
        self.context_lens = torch.ones(num_rows, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(
            (num_rows, MAX_CONTEXT // BLOCK_SIZE), dtype=torch.int32, device=device
        )
        self.slot_mapping = torch.full((num_rows,), PAD_SLOT, device=device)
        self.cu_seqlens_q = torch.arange(num_rows + 1, dtype=torch.int32, device=device)

    def batch(self, **changes):
        arguments = vars(self) | {"block_size": BLOCK_SIZE, "max_context_len": MAX_CONTEXT}
        return decode_batch(**(arguments | changes))

    def fill(self, case):
        num_rows, num_blocks = case.batch.block_tables.shape
        self.context_lens.fill_(1)[:num_rows] = case.batch.context_lens
        self.block_tables.zero_()[:num_rows, :num_blocks] = case.batch.block_tables
        self.slot_mapping.fill_(PAD_SLOT)[:num_rows] = case.batch.slot_mapping


def make_decodes(num_rows, rng, dtype, device):
    context = [rng.choice([1, 16, 17, rng.randrange(1, 700)]) for _ in range(num_rows)]
    return make_case([1] * num_rows, context, heads=(4, 2), dtype=dtype, device=device)


def padded(case, batch):
    """The case on another batch, with queries for rows of padding too."""
    num_rows = len(batch.context_lens)
    q = torch.cat([case.q, case.q.new_zeros(num_rows - len(case.q), *case.q.shape[1:])])
    return Case(q, case.k_cache, case.v_cache, batch, case.scale)


@pytest.mark.parametrize("window", [None, 50])
@FP32_AND_BF16
def test_follows_what_the_buffers_hold(path, device, dtype, seed, window, assert_close):
    rng = random.Random(seed)
    buffers = Buffers(6, device)
    batch = buffers.batch()
    for num_rows in (6, 3, 1):
        case = make_decodes(num_rows, rng, dtype, device)
        buffers.fill(case)
        got = padded(case, batch).got(path, sliding_window=window)
        assert_close(got[:num_rows], case.want(sliding_window=window))


@pytest.mark.parametrize("window", [None, 50])
@FP32_AND_BF16
def test_rows_of_one_sequence_see_what_its_chunk_sees(path, device, dtype, window, assert_close):
    """As a decode that verifies proposed tokens; the first case is cut into splits."""
    case = make_case([4, 1, 6], [530, 20, 34], heads=(4, 2), dtype=dtype, device=device)
    apart = replace(case, batch=each_token_a_row(case.batch))
    got = apart.got(path, sliding_window=window)
    assert_close(got, case.want(sliding_window=window))


def test_rows_of_padding_write_nothing(path, device, seed):
    case = make_decodes(3, random.Random(seed), torch.float32, device)
    buffers = Buffers(5, device)
    buffers.fill(case)
    k_cache, v_cache = (torch.zeros_like(cache) for cache in (case.k_cache, case.v_cache))
    new = torch.ones(5, 2, 64, device=device)
    WRITE[path](new, new, k_cache, v_cache, buffers.batch().slot_mapping)
    for cache in (k_cache, v_cache):
        written = cache.flatten(0, 1).abs().sum((1, 2)).nonzero().squeeze(1)
        assert sorted(written.tolist()) == sorted(case.batch.slot_mapping.tolist())


@pytest.mark.parametrize("context", [0, 1])
def test_rows_of_padding_are_harmless(path, device, context):
    """Also before anybody filled the buffers, as when a graph is first run."""
    buffers = Buffers(4, device)
    buffers.context_lens.fill_(context)
    caches = torch.randn(2, 3, BLOCK_SIZE, 2, 64, device=device)
    case = Case(torch.randn(4, 4, 64, device=device), *caches, buffers.batch(), 0.125)
    if path == "triton" or context:
        assert case.got(path).isfinite().all()


def test_a_bound_far_above_the_lengths_changes_no_bit(seed, monkeypatch):
    monkeypatch.setattr(attention_decode, "num_processors", lambda _: 10)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    case = make_decodes(4, random.Random(seed), torch.bfloat16, device)
    buffers = Buffers(4, device)
    buffers.fill(case)
    bounded = Case(case.q, case.k_cache, case.v_cache, buffers.batch(), case.scale)
    assert torch.equal(bounded.got("triton"), case.got("triton"))


def test_the_plan_lasts_as_long_as_the_buffers_hold_it():
    buffers = Buffers(3, torch.device("cpu"))
    planned = buffers.batch().cpu_plan
    before = planned.current()
    assert planned.current() is before
    buffers.block_tables[1, 0] = 2
    assert planned.current() is not before


def test_says_what_does_not_fit():
    buffers = Buffers(3, torch.device("cpu"))

    def refused(message, **changes):
        with pytest.raises(ValueError, match=message):
            buffers.batch(**changes)

    refused("max_context_len: expected 1 to 2048, what 128 blocks of 16 hold, got 2049",
            max_context_len=2049)  # fmt: skip
    refused("max_context_len: expected 1 to 2048", max_context_len=0)
    refused(r"slot_mapping: expected shape \[3\], got \[2\]", slot_mapping=torch.zeros(2).long())
    refused("slot_mapping: expected torch.int64 on cpu, got torch.int32",
            slot_mapping=torch.zeros(3, dtype=torch.int32))  # fmt: skip
    refused(r"cu_seqlens_q: expected shape \[4\], got \[3\]",
            cu_seqlens_q=torch.zeros(3, dtype=torch.int32))  # fmt: skip
    refused("block_tables: expected dense rows", block_tables=buffers.block_tables[:, ::2])
