"""Attention of new tokens over the paged KV cache: prefill chunks and decodes in one call.

Knows the cache layout of one layer. Knows nothing of models or the scheduler.
"""

import torch

from pagoda_kernels.attention import cpu as cpu_attention
from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.checks import (
    check_float,
    check_fp32,
    check_last_dim_dense,
    check_shape,
    checked_out,
)
from pagoda_kernels.kv.quantisation import check_cache_dtype


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
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of every new token over its sequence's KV, its own KV included.

    ``softmax(cap(scale * q @ k^T)) @ v`` in fp32, where ``cap(s) = soft_cap * tanh(s / soft_cap)``;
    with sinks, ``exp(sinks[h])`` is added to the softmax's denominator, and with ALiBi
    ``alibi_slopes[h] * (position of the key - position of the query)`` to the capped score. Query
    head h reads KV head ``h // (H / HK)``. Reference: `reference.paged_attention`.

    Args:
        q: ``[T, H, D]`` fp32, fp16 or bf16; any strides with a dense last dim.
        k_cache: ``[num_blocks, block_size, HK, D]``, dtype of q, float8_e4m3fn or int8; blocks
            dense, any distance apart.
        v_cache: as `k_cache`.
        batch: from `plan_attention` or `decode_batch` on the device of q.
        scale: factor of the scores, > 0, usually ``D ** -0.5``.
        sliding_window: tokens a query sees, itself included; None for all.
        soft_cap: bound of the scores; None for unbounded.
        sinks: ``[H]`` fp32, fp16 or bf16, not capped or scaled; None for no sinks.
        k_scale: ``[1]`` or ``[HK]`` fp32 > 0, cached K times this is K; None for a cache as q.
        v_scale: as `k_scale`, for V.
        alibi_slopes: ``[H]`` fp32 contiguous, see above; None for no such term. Excludes `sinks`.
        num_splits: parts to cut every decode's KV into, >= 1; None to choose by shape. The CPU path
            never splits.
        is_batch_invariant: cut a decode's KV by its own length alone: same bits for a sequence
            whatever its neighbours. Excludes `num_splits`. On CPU it holds in fp32, always.
        out: ``[T, H, D]`` to write to; allocated if None. The caller owns it.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    rule = ScoreRule(scale, sliding_window, soft_cap, sinks, k_scale, v_scale, alibi_slopes)
    _check(q, k_cache, v_cache, batch, rule)
    check_splits(num_splits, is_batch_invariant)
    out = checked_out(out, q.shape, "q", q)
    if q.is_cuda:
        from pagoda_kernels.attention.triton.paged_attention import run as run_triton

        run_triton(
            q,
            k_cache,
            v_cache,
            batch,
            rule,
            out,
            num_splits=num_splits,
            is_batch_invariant=is_batch_invariant,
        )
    else:
        cpu_attention.run(q, k_cache, v_cache, batch, rule, out)
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    rule: ScoreRule,
) -> None:
    check_shape("q", q, (sum(batch.seqlens_q_host), None, None))
    check_float("q", q)
    check_last_dim_dense("q", q)
    check_shape("k_cache", k_cache, (None, batch.block_size, None, q.shape[2]))
    check_shape("v_cache", v_cache, k_cache.shape)
    check_last_dim_dense("k_cache", k_cache)
    check_last_dim_dense("v_cache", v_cache)
    check_cache_dtype("k_cache", k_cache, "q", q, "k_scale", rule.k_scale)
    check_cache_dtype("v_cache", v_cache, "q", q, "v_scale", rule.v_scale)
    if v_cache.dtype != k_cache.dtype:
        raise ValueError(f"v_cache: expected {k_cache.dtype} as k_cache, got {v_cache.dtype}")
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"q: expected heads a multiple of {k_cache.shape[2]} KV heads, got {q.shape[1]}"
        )
    if rule.sinks is not None:
        check_shape("sinks", rule.sinks, (q.shape[1],))
        check_float("sinks", rule.sinks)
        check_last_dim_dense("sinks", rule.sinks)
    if rule.alibi_slopes is not None:
        check_shape("alibi_slopes", rule.alibi_slopes, (q.shape[1],))
        check_fp32("alibi_slopes", rule.alibi_slopes, q.device)
    for name, tensor in (("batch", batch.context_lens), ("sinks", rule.sinks)):
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{name}: expected on {q.device}, got {tensor.device}")


def check_splits(num_splits: int | None, is_batch_invariant: bool) -> None:
    """Raise ValueError for no splits, or for a number where the mode decides."""
    if num_splits is None:
        return
    if num_splits < 1:
        raise ValueError(f"num_splits: expected >= 1, got {num_splits}")
    if is_batch_invariant:
        raise ValueError(f"num_splits: expected None in batch-invariant mode, got {num_splits}")
