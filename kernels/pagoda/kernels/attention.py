"""Attention of new tokens over the paged KV cache: prefill chunks and decodes in one call.

Knows the cache layout of one layer. Knows nothing of models or the scheduler.
"""

import torch

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.checks import check_float, check_last_dim_dense, check_same, check_shape
from pagoda.kernels.cpu import attention as cpu_attention
from pagoda.kernels.score_rule import ScoreRule


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of every new token over its sequence's KV, its own KV included.

    ``softmax(cap(scale * q @ k^T)) @ v`` in fp32, where ``cap(s) = soft_cap * tanh(s / soft_cap)``.
    Query head h reads KV head ``h // (H / HK)``. Reference: `reference.paged_attention`.

    Args:
        q: ``[T, H, D]`` fp32, fp16 or bf16; any strides with a dense last dim.
        k_cache: ``[num_blocks, block_size, HK, D]``, dtype of q; blocks dense, any distance apart.
        v_cache: as `k_cache`.
        batch: from `plan_attention` on the device of q.
        scale: factor of the scores, usually ``D ** -0.5``.
        sliding_window: tokens a query sees, itself included; None for all.
        soft_cap: bound of the scores; None for unbounded.
        out: ``[T, H, D]`` to write to; allocated if None. The caller owns it.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    rule = ScoreRule(scale, sliding_window, soft_cap)
    _check(q, k_cache, v_cache, batch)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    else:
        check_shape("out", out, q.shape)
        check_same("out", out, "q", q)
        check_last_dim_dense("out", out)
    if q.is_cuda:
        from pagoda.kernels.triton_ops.attention import run as run_triton

        run_triton(q, k_cache, v_cache, batch, rule, out)
    else:
        cpu_attention.run(q, k_cache, v_cache, batch, rule, out)
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
) -> None:
    check_shape("q", q, (sum(batch.seqlens_q_host), None, None))
    check_float("q", q)
    check_last_dim_dense("q", q)
    check_shape("k_cache", k_cache, (None, batch.block_size, None, q.shape[2]))
    check_shape("v_cache", v_cache, k_cache.shape)
    check_same("k_cache", k_cache, "q", q)
    check_same("v_cache", v_cache, "q", q)
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"q: expected heads a multiple of {k_cache.shape[2]} KV heads, got {q.shape[1]}"
        )
    if batch.context_lens.device != q.device:
        raise ValueError(f"batch: expected on {q.device}, got {batch.context_lens.device}")
