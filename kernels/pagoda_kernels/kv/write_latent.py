"""Writes the latents of new tokens to their slots in one layer's cache (DeepSeek's MLA).

Knows slots. Knows nothing of what a latent is made of.
"""

import torch

from pagoda_kernels.checks import (
    check_float,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)
from pagoda_kernels.kv.slots import rows_of_slots, slot_rows


def write_latent(
    latent: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Copy token t to slot ``slot_mapping[t]``; PAD_SLOT (any negative) is skipped.

    Reference: `reference.write_latent`.

    Args:
        latent: ``[T, W]`` fp32, fp16 or bf16, W even; any strides with a dense last dim.
        latent_cache: ``[num_blocks, block_size, W]``, dtype of latent; blocks dense, any distance
            apart.
        slot_mapping: ``[T]`` int32 or int64, ``block_id * block_size + offset``, each at most once.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(latent, latent_cache, slot_mapping)
    if latent.is_cuda:
        from pagoda_kernels.kv.triton.write_kv import write_kv as write_kv_triton

        # One kernel serves both: to it the halves of a row are a K and a V of one head.
        k, v = latent[:, None].chunk(2, 2)
        k_cache, v_cache = latent_cache[:, :, None].chunk(2, 3)
        write_kv_triton(k, v, k_cache, v_cache, slot_mapping)
        return
    if len(slot_mapping) and int(slot_mapping.min()) < 0:
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        latent, slot_mapping = latent[kept], slot_mapping[kept]
    rows, rows_between = slot_rows(latent_cache[:, :, None])
    index = rows_of_slots(slot_mapping, latent_cache.shape[1], rows_between)
    rows.index_copy_(0, index.long(), latent)


def _check(latent: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    check_shape("latent", latent, (None, None))
    check_float("latent", latent)
    check_last_dim_dense("latent", latent)
    if latent.shape[1] % 2:
        raise ValueError(f"latent: expected an even width, got {latent.shape[1]}")
    check_shape("latent_cache", latent_cache, (None, None, latent.shape[1]))
    check_same("latent_cache", latent_cache, "latent", latent)
    check_last_dim_dense("latent_cache", latent_cache)
    check_shape("slot_mapping", slot_mapping, (len(latent),))
    check_index("slot_mapping", slot_mapping, latent.device)
