"""Elements more than 2^31 of them apart, as in any pool that fills a GPU: no offset may wrap.

The memory is never filled: the tests touch a few pages of it.
"""

import pytest
import torch

from pagoda_kernels import plan_attention
from pagoda_kernels.attention import reference as attention_reference
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton import paged_attention as attention
from pagoda_kernels.attention.triton.mla_decode import mla_decode
from pagoda_kernels.attention.triton.mla_prefill import mla_prefill
from pagoda_kernels.attention.triton.prefill import prefill
from pagoda_kernels.attention.varlen_batch import plan_varlen
from pagoda_kernels.kv import reference as kv_reference
from pagoda_kernels.kv.block_digest import as_bytes, digest_blocks
from pagoda_kernels.kv.triton import block_copy
from pagoda_kernels.kv.triton.write_kv import write_kv
from pagoda_kernels.kv.triton.write_qkv import write_qkv
from pagoda_kernels.rope import reference as rope_reference
from pagoda_kernels.rope.triton import apply_rope

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FAR = 2**30
"""Between two neighbours along a dim of three: the last is 2^31 from the first."""

BLOCK_SIZE, HEADS, HEAD_DIM = 64, 3, 64
SCALE = HEAD_DIM**-0.5


def apart(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The values, neighbours along `dim` FAR elements apart."""
    strides = list(values.movedim(dim, 0).contiguous().movedim(0, dim).stride())
    strides[dim] = FAR
    num_elements = FAR * (values.shape[dim] - 1) + values.numel()
    memory = torch.UntypedStorage(num_elements * values.element_size(), device=DEVICE)
    tensor = torch.tensor([], dtype=values.dtype, device=DEVICE)
    tensor.set_(memory, 0, values.shape, strides)
    return tensor.copy_(values)


def like(values: torch.Tensor, dim: int) -> torch.Tensor:
    return apart(torch.full_like(values, float("nan")), dim)


@pytest.fixture(scope="module")
def pool() -> torch.Tensor:
    """``[3, 2, block_size, HK, D]`` int8: K and V of three blocks."""
    torch.manual_seed(1)
    return apart(torch.randint(-99, 99, (3, 2, BLOCK_SIZE, 1, HEAD_DIM)).to(torch.int8), 0)


@pytest.mark.parametrize("with_descriptors", [False, True])
def test_attention_reads_blocks(pool, with_descriptors, assert_close):
    k_cache, v_cache = pool.unbind(1)
    batch = plan_attention(
        seqlens_q=[1, 65],
        context_lens=[60, 127],
        block_tables=[[2], [1, 2]],
        block_size=BLOCK_SIZE,
        device=DEVICE,
    )
    q = torch.randn(66, HEADS, HEAD_DIM).half().to(DEVICE)
    scale = torch.tensor([0.03], device=DEVICE)
    out = torch.full_like(q, float("nan"))
    rule = ScoreRule(SCALE, k_scale=scale, v_scale=scale)
    attention.run(q, k_cache, v_cache, batch, rule, out)
    prefill(q, k_cache, v_cache, batch, rule, out, with_descriptors)
    want = attention_reference.paged_attention(
        q, k_cache, v_cache, batch, scale=SCALE, k_scale=scale, v_scale=scale
    )
    assert_close(out, want)


def test_new_tokens_are_written_to_blocks(pool):
    slots = torch.tensor([2 * BLOCK_SIZE + 5, BLOCK_SIZE + 6], device=DEVICE)
    qkv = torch.randn(2, 3 * HEAD_DIM).half().to(DEVICE)
    _, k, v = qkv.view(2, 3, HEAD_DIM).split(1, 1)
    scale = torch.tensor([0.03], device=DEVICE)
    before = pool[[2, 1], :, [5, 6]].clone()
    write_qkv(
        qkv,
        slots,
        None,
        *pool.unbind(1),
        slots,
        num_heads=1,
        q_norm=None,
        k_norm=None,
        eps=1e-6,
        k_scale=scale,
        v_scale=scale,
    )
    fused = pool[[2, 1], :, [5, 6]].clone()
    pool[[2, 1], :, [5, 6]] = before
    write_kv(k, v, *pool.unbind(1), slots, scale, scale)
    assert torch.equal(pool[[2, 1], :, [5, 6]], fused)
    stored = fused.float() * scale
    new = torch.stack([k, v], 1)
    assert (stored - new).abs().max() <= scale


def test_blocks_are_copied_and_digested(pool):
    source = pool.movedim(0, 1)[:, None]
    ids = torch.tensor([2, 0], device=DEVICE)
    want = kv_reference.gather_blocks(source, ids)
    digests = digest_blocks(as_bytes(want))
    got = torch.zeros_like(want)
    assert torch.equal(block_copy.gather_blocks_digest(source, ids, got), digests)
    assert torch.equal(got, want)
    assert torch.equal(block_copy.digest_pool(source, ids), digests)
    block_copy.scatter_blocks(source, ids, want.flip(0).contiguous())
    assert torch.equal(kv_reference.gather_blocks(source, ids), want.flip(0))
    assert torch.equal(block_copy.copy_blocks(source, ids, source, ids), digests.flip(0))


def test_rope_turns_heads():
    q = apart(torch.randn(5, HEADS, HEAD_DIM).half(), 1)
    cos_sin, positions = torch.rand(9, HEAD_DIM, device=DEVICE), torch.arange(5, device=DEVICE)
    want = rope_reference.apply_rope(q, q[:, :1], positions, cos_sin)
    got = apply_rope(q, q[:, :1], positions, cos_sin)
    assert torch.allclose(got[0].float(), want[0].float(), atol=2e-3)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_latent_attention_of_blocks_and_heads(num_splits, assert_close):
    cache = apart(torch.randn(3, BLOCK_SIZE, 48).half(), 0)
    batch = plan_attention(
        seqlens_q=[2],
        context_lens=[100],
        block_tables=[[2, 1]],
        block_size=BLOCK_SIZE,
        device=DEVICE,
    )
    q = apart(torch.randn(2, HEADS, 48).half(), 1)
    out = like(q[..., :32], 1)
    mla_decode(q, cache, batch, SCALE, out, num_splits)
    want = attention_reference.mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=32)
    assert_close(out, want)


def test_expanded_latent_attention_of_heads(assert_close):
    q = apart(torch.randn(33, HEADS, 48).half(), 1)
    out = like(q, 1)
    mla_prefill(q, q, q, plan_varlen(seqlens_q=[33], seqlens_k=[33], device=DEVICE), SCALE, out)
    assert_close(out, attention_reference.mla_prefill(q, q, q, [33], [33], scale=SCALE))
