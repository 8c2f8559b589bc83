"""Readable twins of every attention: the definition the fast paths are tested against.

Loops and fp32 throughout, no speed intended. Results come in the dtype of the input, rounded last.
"""

from collections.abc import Sequence

import torch

from pagoda_kernels.attention.batch import AttentionBatch


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """One sequence at a time: collect its KV, mask, softmax with the sink as one more key."""
    group_size = q.shape[1] // k_cache.shape[2]
    starts = batch.cu_seqlens_q.tolist()
    outputs = []
    for seq, context in enumerate(batch.context_lens.tolist()):
        rows = q[starts[seq] : starts[seq + 1]].float()
        blocks = batch.block_tables[seq, : -(-context // batch.block_size)].long()
        k = _widened(k_cache, blocks, context, k_scale).repeat_interleave(group_size, 1)
        v = _widened(v_cache, blocks, context, v_scale).repeat_interleave(group_size, 1)
        scores = torch.einsum("thd,nhd->htn", rows, k) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        query_at = torch.arange(context - len(rows), context, device=q.device)[:, None]
        key_at = torch.arange(context, device=q.device)[None]
        if alibi_slopes is not None:
            scores = scores + alibi_slopes[:, None, None] * (key_at - query_at)
        visible = key_at <= query_at
        if sliding_window is not None:
            visible &= key_at > query_at - sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            sink = sinks.float()[:, None, None].expand(-1, len(rows), 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., :context]
        outputs.append(torch.einsum("htn,nhd->thd", weights, v))
    return torch.cat(outputs).to(q.dtype)


def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    kv_lora_rank: int,
) -> torch.Tensor:
    """One sequence at a time: the latent is every head's key, and its first dims the value."""
    starts = batch.cu_seqlens_q.tolist()
    outputs = []
    for seq, context in enumerate(batch.context_lens.tolist()):
        rows = q[starts[seq] : starts[seq + 1]].float()
        blocks = batch.block_tables[seq, : -(-context // batch.block_size)].long()
        latent = latent_cache[blocks].flatten(0, 1)[:context].float()
        scores = torch.einsum("thd,nd->htn", rows, latent) * scale
        query_at = torch.arange(context - len(rows), context, device=q.device)[:, None]
        hidden = torch.arange(context, device=q.device)[None] > query_at
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("htn,nd->thd", weights, latent[:, :kv_lora_rank]))
    return torch.cat(outputs).to(q.dtype)


def mla_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seqlens_q: Sequence[int],
    seqlens_k: Sequence[int],
    *,
    scale: float,
) -> torch.Tensor:
    """One sequence at a time, causal, the last query at the last key."""
    outputs = []
    keys_of, values_of = k.split_with_sizes(list(seqlens_k)), v.split_with_sizes(list(seqlens_k))
    rows_of = q.split_with_sizes(list(seqlens_q))
    for rows, keys, values in zip(rows_of, keys_of, values_of, strict=True):
        scores = torch.einsum("thd,nhd->htn", rows.float(), keys.float()) * scale
        query_at = torch.arange(len(keys) - len(rows), len(keys), device=q.device)[:, None]
        hidden = torch.arange(len(keys), device=q.device)[None] > query_at
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("htn,nhd->thd", weights, values.float()))
    return torch.cat(outputs).to(q.dtype)


def _widened(
    cache: torch.Tensor, blocks: torch.Tensor, context: int, scale: torch.Tensor | None
) -> torch.Tensor:
    """``[context, HK, D]`` fp32 of a sequence's blocks."""
    rows = torch.cat([cache[block].float() for block in blocks.tolist()])[:context]
    return rows if scale is None else rows * scale[:, None]
