"""Lengths of sequences whose K and V lie one after another, not in blocks: once for all layers.

Knows lengths. Knows nothing of heads or dtypes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagoda_kernels.host_copy import to_device


@dataclass(frozen=True, slots=True)
class VarlenBatch:
    """Batch of S sequences with T queries and N keys in all.

    Sequence i owns queries ``[cu_seqlens_q[i], cu_seqlens_q[i + 1])`` and keys alike; its queries
    are its last tokens.

    Attributes:
        cu_seqlens_q: ``[S + 1]`` int32 on the device, prefix sums of queries.
        cu_seqlens_k: ``[S + 1]`` int32 on the device, prefix sums of keys.
        seqlens_q_host: queries per sequence, on the host, so that no step waits for a copy.
        seqlens_k_host: keys per sequence, on the host.
    """

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    seqlens_q_host: tuple[int, ...]
    seqlens_k_host: tuple[int, ...]


def plan_varlen(
    *, seqlens_q: Sequence[int], seqlens_k: Sequence[int], device: torch.device
) -> VarlenBatch:
    """Build what every layer of one step reads. Copies to the device without waiting for it.

    Raises:
        ValueError: lists of different lengths, or not 0 <= seqlen_q <= seqlen_k.
    """
    if len(seqlens_q) != len(seqlens_k):
        raise ValueError(
            f"expected as many seqlens_q as seqlens_k, got {len(seqlens_q)}, {len(seqlens_k)}"
        )
    for row, (new, keys) in enumerate(zip(seqlens_q, seqlens_k, strict=True)):
        if not 0 <= new <= keys:
            raise ValueError(f"sequence {row}: expected 0 <= seqlen_q <= {keys}, got {new}")
    cu_seqlens_q, cu_seqlens_k = to_device(
        (_prefix_sums(seqlens_q), _prefix_sums(seqlens_k)), device
    )
    return VarlenBatch(cu_seqlens_q, cu_seqlens_k, tuple(seqlens_q), tuple(seqlens_k))


def _prefix_sums(lengths: Sequence[int]) -> npt.NDArray[np.int32]:
    sums = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=sums[1:])
    return sums
