"""Writes the K and V of new tokens to their slots in one layer's cache.

Knows slots. Knows nothing of sequences or who owns a block.
"""

import torch

from pagoda.kernels.checks import (
    check_float,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)
from pagoda.kernels.cpu.slots import rows_of_slots, slot_rows


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Copy token t to slot ``slot_mapping[t]`` of both caches; PAD_SLOT (any negative) is skipped.

    Args:
        k: ``[T, HK, D]`` fp32, fp16 or bf16; any strides with a dense last dim.
        v: as `k`.
        k_cache: ``[num_blocks, block_size, HK, D]``, dtype of k; blocks dense, any distance apart.
        v_cache: as `k_cache`.
        slot_mapping: ``[T]`` int32 or int64, ``block_id * block_size + offset``, each at most once.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    num_tokens, num_kv_heads, head_dim = _check(k, v, k_cache, v_cache, slot_mapping)
    if k.is_cuda:
        from pagoda.kernels.triton_ops.kv_write import write_kv as write_kv_triton

        write_kv_triton(k, v, k_cache, v_cache, slot_mapping)
        return
    if bool((slot_mapping < 0).any()):
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
        num_tokens = len(kept)
    for new, cache in ((k, k_cache), (v, v_cache)):
        rows, rows_between = slot_rows(cache)
        index = rows_of_slots(slot_mapping, cache.shape[1], rows_between)
        rows.index_copy_(0, index.long(), new.reshape(num_tokens, num_kv_heads * head_dim))


def _check(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> tuple[int, int, int]:
    check_shape("k", k, (None, None, None))
    num_tokens, num_kv_heads, head_dim = k.shape
    check_float("k", k)
    check_shape("v", v, k.shape)
    check_shape("k_cache", k_cache, (None, None, num_kv_heads, head_dim))
    check_shape("v_cache", v_cache, k_cache.shape)
    check_last_dim_dense("k", k)
    check_last_dim_dense("v", v)
    for name, tensor in (("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_same(name, tensor, "k", k)
    check_shape("slot_mapping", slot_mapping, (num_tokens,))
    check_index("slot_mapping", slot_mapping, k.device)
    return num_tokens, num_kv_heads, head_dim
