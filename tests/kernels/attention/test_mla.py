"""Latent attention: absorbed over the paged cache, expanded for prompts, and that both agree."""

import random

import pytest
import torch
import torch.nn.functional as F
from support.paged_case import each_token_a_row

from pagoda_kernels import plan_attention
from pagoda_kernels.attention import reference
from pagoda_kernels.attention.mla import mla_decode, mla_prefill
from pagoda_kernels.attention.triton import mla_decode as triton_mla_decode
from pagoda_kernels.attention.triton import mla_prefill as triton_mla_prefill
from pagoda_kernels.attention.triton import splits
from pagoda_kernels.attention.varlen_batch import plan_varlen

GPU_OR_CPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SCALE = 192**-0.5


def make_decode_case(
    seqlens_q, context_lens, *, num_heads=3, rank=32, rope_dim=16, block_size=16, dtype, device
):
    """(q, latent cache, batch); slots that no sequence owns hold NaN."""
    needed = [-(-context // block_size) for context in context_lens]
    free = torch.randperm(sum(needed) + 2).tolist()
    tables = [[free.pop() for _ in range(count)] for count in needed]
    cache = torch.full((sum(needed) + 2, block_size, rank + rope_dim), float("nan"))
    for table, context in zip(tables, context_lens, strict=True):
        position = torch.arange(context)
        block = torch.tensor(table)[position // block_size]
        cache[block, position % block_size] = torch.randn(context, rank + rope_dim)
    batch = plan_attention(
        seqlens_q=seqlens_q,
        context_lens=context_lens,
        block_tables=tables,
        block_size=block_size,
        device=device,
    )
    q = torch.randn(sum(seqlens_q), num_heads, rank + rope_dim)
    return q.to(device, dtype), cache.to(device, dtype), batch


def decode(path, q, cache, batch, rank, **options):
    if path == "cpu":
        return mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=rank, **options)
    out = torch.full((*q.shape[:2], rank), float("nan"), dtype=q.dtype, device=q.device)
    triton_mla_decode.mla_decode(q, cache, batch, SCALE, out, **options)
    return out


def want_decode(q, cache, batch, rank):
    return reference.mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=rank)


def prefill(path, q, k, v, batch):
    if path == "cpu":
        return mla_prefill(q, k, v, batch, scale=SCALE)
    out = torch.full((*q.shape[:2], v.shape[2]), float("nan"), dtype=q.dtype, device=q.device)
    triton_mla_prefill.mla_prefill(q, k, v, batch, SCALE, out)
    return out


@pytest.mark.parametrize("num_heads", [1, 16, 40])
@pytest.mark.parametrize("block_size", [16, 64])
def test_decode_matches_reference(path, device, dtype, num_heads, block_size, assert_close):
    case = make_decode_case(
        [1, 1, 1],
        [1, 63, 127],
        num_heads=num_heads,
        block_size=block_size,
        dtype=dtype,
        device=device,
    )
    assert_close(decode(path, *case, 32), want_decode(*case, 32))


@pytest.mark.parametrize(("rank", "rope_dim"), [(512, 64), (48, 24)])
def test_decode_of_other_widths(path, device, dtype, rank, rope_dim, assert_close):
    case = make_decode_case(
        [1, 1], [70, 9], rank=rank, rope_dim=rope_dim, dtype=dtype, device=device
    )
    assert_close(decode(path, *case, rank), want_decode(*case, rank))


def test_decode_of_several_new_tokens(path, device, dtype, assert_close):
    case = make_decode_case([3, 1, 17], [40, 63, 17], dtype=dtype, device=device)
    assert_close(decode(path, *case, 32), want_decode(*case, 32))


def test_rows_of_one_sequence_see_what_its_chunk_sees(path, device, dtype, assert_close):
    q, cache, batch = make_decode_case([4, 1, 6], [530, 20, 34], dtype=dtype, device=device)
    apart = each_token_a_row(batch)
    assert_close(decode(path, q, cache, apart, 32), want_decode(q, cache, batch, 32))


def test_decode_takes_q_sliced_and_blocks_apart_in_memory(path, device, dtype, assert_close):
    q, cache, batch = make_decode_case([1, 2], [40, 63], dtype=dtype, device=device)
    q = torch.cat([q, q], 1)[:, 2:5]
    cache = torch.stack([cache, cache], 1)[:, 1]
    assert_close(decode(path, q, cache, batch, 32), want_decode(q, cache, batch, 32))


@pytest.mark.parametrize("num_splits", [1, 2, 5, 40])
def test_splits_merge_to_the_whole(dtype, num_splits, assert_close):
    case = make_decode_case([1, 1, 2], [300, 1, 65], dtype=dtype, device=GPU_OR_CPU)
    got = decode("triton", *case, 32, num_splits=num_splits)
    assert_close(got, want_decode(*case, 32))


def test_batch_invariant_bits(seed, monkeypatch, assert_close):
    monkeypatch.setattr(splits, "INVARIANT_SPLIT_TOKENS", 64)
    rng = random.Random(seed)
    context = [rng.randint(1, 63), rng.randint(64, 300), 900]
    q, cache, batch = make_decode_case([1] * 3, context, dtype=torch.float16, device=GPU_OR_CPU)
    together = decode("triton", q, cache, batch, 32, is_batch_invariant=True)
    assert_close(together, want_decode(q, cache, batch, 32))
    for seq, length in enumerate(context):
        alone = plan_attention(
            seqlens_q=[1],
            context_lens=[length],
            block_tables=[batch.block_tables[seq].tolist()],
            block_size=16,
            device=GPU_OR_CPU,
        )
        rows = slice(seq, seq + 1)
        mine = decode("triton", q[rows], cache, alone, 32, is_batch_invariant=True)
        assert torch.equal(together[rows], mine)


@pytest.mark.parametrize(
    ("seqlens_q", "seqlens_k", "heads"),
    [([1, 63, 127], [1, 63, 127], 1), ([17, 0, 63], [130, 5, 63], 2), ([0], [3], 1)],
)
def test_prefill_matches_reference(path, device, dtype, seqlens_q, seqlens_k, heads, assert_close):
    q = torch.randn(sum(seqlens_q), heads, 192).to(device, dtype)
    k = torch.randn(sum(seqlens_k), heads, 192).to(device, dtype)
    v = torch.randn(sum(seqlens_k), heads, 128).to(device, dtype)
    batch = plan_varlen(seqlens_q=seqlens_q, seqlens_k=seqlens_k, device=device)
    want = reference.mla_prefill(q, k, v, seqlens_q, seqlens_k, scale=SCALE)
    assert_close(prefill(path, q, k, v, batch), want)


@pytest.mark.parametrize(("dim_qk", "dim_v"), [(48, 48), (24, 16), (128, 64)])
def test_prefill_of_other_widths_sliced_out_of_a_projection(
    path, device, dtype, dim_qk, dim_v, assert_close
):
    lengths = [63, 5]
    q, k, v = torch.randn(3, 68, 2, dim_qk + 8).to(device, dtype)
    q, k, v = q[..., 8:], k[..., :dim_qk], v[..., :dim_v]
    batch = plan_varlen(seqlens_q=lengths, seqlens_k=lengths, device=device)
    want = reference.mla_prefill(q, k, v, lengths, lengths, scale=SCALE)
    assert_close(prefill(path, q, k, v, batch), want)


def test_absorbed_equals_expanded(path, device, assert_close):
    lengths, heads, rank, nope, value = [63], 2, 32, 24, 24
    to_k = torch.randn(heads, nope, rank, device=device)
    to_v = torch.randn(heads, value, rank, device=device)
    q_absorbed, cache, batch = make_decode_case(
        lengths, lengths, num_heads=heads, dtype=torch.float32, device=device
    )
    q = torch.randn(63, heads, nope, device=device)
    q_absorbed[..., :rank] = torch.einsum("thd,hdr->thr", q, to_k)
    rows = cache[batch.block_tables[0].long()].flatten(0, 1)[:63]
    latent, rotated = rows[:, None, :rank].expand(-1, heads, -1), rows[:, None, rank:]
    k = torch.cat([torch.einsum("nhr,hdr->nhd", latent, to_k), rotated.expand(-1, heads, -1)], -1)
    v = torch.einsum("nhr,hdr->nhd", latent, to_v)
    q = torch.cat([q, q_absorbed[..., rank:]], -1)
    expanded = prefill(
        path, q, k, v, plan_varlen(seqlens_q=lengths, seqlens_k=lengths, device=device)
    )
    absorbed = torch.einsum("thr,hdr->thd", decode(path, q_absorbed, cache, batch, rank), to_v)
    assert (absorbed - expanded).norm() / expanded.norm() < 5e-5


def test_reference_prefill_is_dense_causal_attention(assert_close):
    q, k, v = torch.randn(3, 63, 2, 64)
    want = F.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, scale=SCALE
    )[0].transpose(0, 1)
    got = reference.mla_prefill(q, k, v, [63], [63], scale=SCALE)
    assert_close(got, want)


def test_writes_to_out(path, device, assert_close):
    q, cache, batch = make_decode_case([1, 1], [40, 63], dtype=torch.float32, device=device)
    out = torch.full((2, 5, 32), float("nan"), device=device)[:, 1:4]
    if path == "cpu":
        assert mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=32, out=out) is out
    else:
        triton_mla_decode.mla_decode(q, cache, batch, SCALE, out, 2)
    assert_close(out, want_decode(q, cache, batch, 32))


def test_no_tokens_give_no_rows(path, device):
    case = make_decode_case([], [], dtype=torch.float32, device=device)
    assert decode(path, *case, 32).shape == (0, 3, 32)
    empty = torch.ones(0, 2, 192, device=device)
    batch = plan_varlen(seqlens_q=[], seqlens_k=[], device=device)
    assert prefill(path, empty, empty, empty[..., :128], batch).shape == (0, 2, 128)


def test_decode_says_what_does_not_fit():
    q, cache, batch = make_decode_case([1], [9], dtype=torch.float32, device=torch.device("cpu"))

    def refused(message, q=q, cache=cache, kv_lora_rank=32, scale=1.0, **options):
        with pytest.raises(ValueError, match=message):
            mla_decode(q, cache, batch, scale=scale, kv_lora_rank=kv_lora_rank, **options)

    refused(r"q: expected shape \[1, any, any\], got \[2, 3, 48\]", q=q.repeat(2, 1, 1))
    refused(r"latent_cache: expected shape \[any, 16, 48\]", cache=cache[..., :40])
    refused("latent_cache: expected torch.float32 on cpu as q", cache=cache.half())
    refused("kv_lora_rank: expected a multiple of 16 below 48, got 48", kv_lora_rank=48)
    refused("scale: expected > 0, got -1", scale=-1.0)
    refused("num_splits: expected >= 1, got 0", num_splits=0)
    refused("num_splits: expected None in batch-inv", num_splits=2, is_batch_invariant=True)
    refused(r"out: expected shape \[1, 3, 32\]", out=q)


def test_prefill_says_what_does_not_fit():
    x = torch.ones(3, 2, 32)
    batch = plan_varlen(seqlens_q=[3], seqlens_k=[3], device=torch.device("cpu"))

    def refused(message, q=x, k=x, v=x, scale=1.0):
        with pytest.raises(ValueError, match=message):
            mla_prefill(q, k, v, batch, scale=scale)

    refused("scale: expected > 0, got nan", scale=float("nan"))

    refused(r"q: expected shape \[3, any, any\]", q=x[:2])
    refused(r"k: expected shape \[3, 2, 32\]", k=x[:, :1])
    refused("v: expected head_dim <= 32, got 40", v=torch.ones(3, 2, 40))
    refused("q: expected head_dim >= 16, got 8", q=x[..., :8], k=x[..., :8])
    with pytest.raises(ValueError, match="sequence 0: expected 0 <= seqlen_q <= 2, got 3"):
        plan_varlen(seqlens_q=[3], seqlens_k=[2], device=torch.device("cpu"))
    with pytest.raises(ValueError, match="expected as many seqlens_q as seqlens_k, got 1, 2"):
        plan_varlen(seqlens_q=[3], seqlens_k=[2, 4], device=torch.device("cpu"))
