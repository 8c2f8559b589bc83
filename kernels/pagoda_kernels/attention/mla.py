"""Multi-head latent attention (DeepSeek-V2): every head reads one compressed K and V per token.

Knows the latent cache of one layer. Knows nothing of the projections around it. See DeepSeek-AI,
"DeepSeek-V2", 2024, arXiv:2405.04434.
"""

import torch

from pagoda_kernels.attention import mla_cpu as cpu_mla
from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.paged_attention import check_splits
from pagoda_kernels.attention.varlen_batch import VarlenBatch
from pagoda_kernels.checks import (
    check_float,
    check_last_dim_dense,
    check_same,
    check_scale,
    check_shape,
    checked_out,
)


def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    kv_lora_rank: int,
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Absorbed attention of every new token: ``softmax(scale * q @ c^T) @ c[:, :kv_lora_rank]``.

    Causal, in fp32; c are the cached rows of the token's sequence, its own included. Sequences may
    have several new tokens, but then `mla_prefill` does less arithmetic. Reference:
    `reference.mla_decode`.

    Args:
        q: ``[T, H, R + P]`` fp32, fp16 or bf16: R = kv_lora_rank dims multiplied by the key
            up-projection, then P rotated dims; any strides with a dense last dim.
        latent_cache: ``[num_blocks, block_size, R + P]``, dtype of q: the normalised latent, then
            the rotated key all heads share; blocks dense, any distance apart.
        batch: from `plan_attention` or `decode_batch` on the device of q.
        scale: factor of the scores, > 0, ``(head_dim_qk) ** -0.5`` of the heads before absorption.
        kv_lora_rank: R, a multiple of 16.
        num_splits: parts to cut every sequence's KV into, >= 1; None to choose by shape. The CPU
            path never splits.
        is_batch_invariant: cut a sequence's KV by its own length alone; excludes `num_splits`.
        out: ``[T, H, R]`` to write to; allocated if None. The caller owns it.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check_decode(q, latent_cache, batch, kv_lora_rank)
    check_scale(scale)
    check_splits(num_splits, is_batch_invariant)
    out = checked_out(out, (*q.shape[:2], kv_lora_rank), "q", q)
    if q.is_cuda:
        from pagoda_kernels.attention.triton.mla_decode import mla_decode as mla_decode_triton

        mla_decode_triton(q, latent_cache, batch, scale, out, num_splits, is_batch_invariant)
    else:
        cpu_mla.decode(q, latent_cache, batch, scale, out)
    return out


def mla_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    *,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of new tokens over expanded K and V: ``softmax(scale * q @ k^T) @ v``.

    In fp32; a sequence's last query sees all its keys. Reference:
    `reference.mla_prefill`.

    Args:
        q: ``[T, H, DQK]`` fp32, fp16 or bf16, 192 in DeepSeek; any strides with a dense last dim.
        k: ``[N, H, DQK]``, dtype of q, all tokens of each sequence; strides as q.
        v: ``[N, H, DV]``, DV <= DQK, 128 in DeepSeek; strides as q.
        batch: from `plan_varlen` on the device of q.
        scale: factor of the scores, > 0, often ``DQK ** -0.5`` times what RoPE scaling asks for.
        out: ``[T, H, DV]`` to write to; allocated if None. The caller owns it.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check_prefill(q, k, v, batch)
    check_scale(scale)
    out = checked_out(out, (*q.shape[:2], v.shape[2]), "q", q)
    if q.is_cuda:
        from pagoda_kernels.attention.triton.mla_prefill import mla_prefill as mla_prefill_triton

        mla_prefill_triton(q, k, v, batch, scale, out)
    else:
        cpu_mla.prefill(q, k, v, batch, scale, out)
    return out


def _check_decode(
    q: torch.Tensor, latent_cache: torch.Tensor, batch: AttentionBatch, kv_lora_rank: int
) -> None:
    check_shape("q", q, (sum(batch.seqlens_q_host), None, None))
    check_float("q", q)
    check_last_dim_dense("q", q)
    check_shape("latent_cache", latent_cache, (None, batch.block_size, q.shape[2]))
    check_same("latent_cache", latent_cache, "q", q)
    check_last_dim_dense("latent_cache", latent_cache)
    if not 0 < kv_lora_rank < q.shape[2] or kv_lora_rank % 16:
        raise ValueError(
            f"kv_lora_rank: expected a multiple of 16 below {q.shape[2]}, got {kv_lora_rank}"
        )
    if batch.context_lens.device != q.device:
        raise ValueError(f"batch: expected on {q.device}, got {batch.context_lens.device}")


def _check_prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: VarlenBatch) -> None:
    check_shape("q", q, (sum(batch.seqlens_q_host), None, None))
    check_float("q", q)
    check_shape("k", k, (sum(batch.seqlens_k_host), *q.shape[1:]))
    check_shape("v", v, (len(k), q.shape[1], None))
    check_same("k", k, "q", q)
    check_same("v", v, "q", q)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_last_dim_dense(name, tensor)
    if q.shape[2] < 16:
        raise ValueError(f"q: expected head_dim >= 16, got {q.shape[2]}")
    if v.shape[2] > q.shape[2]:
        raise ValueError(f"v: expected head_dim <= {q.shape[2]}, got {v.shape[2]}")
    if batch.cu_seqlens_q.device != q.device:
        raise ValueError(f"batch: expected on {q.device}, got {batch.cu_seqlens_q.device}")
