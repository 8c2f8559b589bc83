"""Latent attention on CPU: torch SDPA over gathered latents, or over expanded K and V in parts."""

import torch
import torch.nn.functional as F

from pagoda_kernels.attention import cpu as attention
from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.varlen_batch import VarlenBatch

ROWS_AT_ONCE = 128
"""Query rows attended at once: fewer skip more masked keys, more amortise the call."""


def decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Fill `out` ``[T, H, R]``: attention with one KV head whose K and V are both the latent.

    The P dims of V that nobody asked for cost an eighth more, less than another gather.
    """
    cache = latent_cache[:, :, None]
    attended = torch.empty(q.shape, dtype=q.dtype)
    attention.run(q, cache, cache, batch, ScoreRule(scale), attended)
    out.copy_(attended[..., : out.shape[2]])


def prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Fill `out` ``[T, H, DV]``, each sequence in equal parts of at most ROWS_AT_ONCE rows."""
    # SDPA is fast only for heads of one size.
    wide_v = F.pad(v, (0, q.shape[2] - v.shape[2]))
    q_start = k_start = 0
    for num_new, num_keys in zip(batch.seqlens_q_host, batch.seqlens_k_host, strict=True):
        keys, values = k[k_start : k_start + num_keys], wide_v[k_start : k_start + num_keys]
        num_parts = -(-num_new // ROWS_AT_ONCE)
        for part in range(num_parts):
            begin, end = num_new * part // num_parts, num_new * (part + 1) // num_parts
            visible = num_keys - num_new + end
            rows = slice(q_start + begin, q_start + end)
            hidden = torch.ones(end - begin, visible, dtype=torch.bool)
            hidden.triu_(visible - (end - begin) + 1)
            attended = F.scaled_dot_product_attention(
                q[rows].transpose(0, 1)[None],
                keys[:visible].transpose(0, 1)[None],
                values[:visible].transpose(0, 1)[None],
                attn_mask=~hidden,
                scale=scale,
            )
            out[rows] = attended[0].transpose(0, 1)[..., : out.shape[2]]
        q_start, k_start = q_start + num_new, k_start + num_keys
