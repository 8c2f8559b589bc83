"""Sends the decodes and the prefills of a batch to their kernels."""

import torch

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton.decode import decode
from pagoda_kernels.attention.triton.prefill import prefill


def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    rule: ScoreRule,
    out: torch.Tensor,
    *,
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
) -> None:
    """Fill `out` ``[T, H, D]``; arguments as `paged_attention`, already checked."""
    if 1 in batch.seqlens_q_host:
        decode(
            q,
            k_cache,
            v_cache,
            batch,
            rule,
            out,
            num_splits=num_splits,
            is_batch_invariant=is_batch_invariant,
        )
    if max(batch.seqlens_q_host, default=1) > 1:
        prefill(q, k_cache, v_cache, batch, rule, out)
