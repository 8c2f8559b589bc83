"""Writes the K and V of new tokens to their slots in one layer's cache.

Knows slots. Knows nothing of sequences or who owns a block.
"""

import torch

from pagoda_kernels.checks import (
    FLOAT_DTYPES,
    check_float,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)
from pagoda_kernels.kv.quantisation import bytes_of, check_cache_dtype, quantise
from pagoda_kernels.kv.slots import rows_of_slots, slot_rows


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Copy token t to slot ``slot_mapping[t]`` of both caches; PAD_SLOT (any negative) is skipped.

    A quantised cache gets ``round(clamp(k * (1 / k_scale)))``, to the nearest even.

    Args:
        k: ``[T, HK, D]`` fp32, fp16 or bf16; any strides with a dense last dim.
        v: as `k`.
        k_cache: ``[num_blocks, block_size, HK, D]``, dtype of k, float8_e4m3fn or int8; blocks
            dense, any distance apart.
        v_cache: as `k_cache`.
        slot_mapping: ``[T]`` int32 or int64, ``block_id * block_size + offset``, each at most once.
        k_scale: ``[1]`` or ``[HK]`` fp32, cached K times this is K; None for a cache as k.
        v_scale: as `k_scale`, for V.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    if k.is_cuda:
        from pagoda_kernels.kv.triton.write_kv import write_kv as write_kv_triton

        write_kv_triton(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
        return
    if len(slot_mapping) == 1 and k_scale is None and v_scale is None:
        _write_one(k, v, k_cache, v_cache, int(slot_mapping))
        return
    if len(slot_mapping) and int(slot_mapping.min()) < 0:
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        stored = new if scale is None else bytes_of(quantise(new, scale, cache.dtype))
        rows, rows_between = slot_rows(bytes_of(cache))
        index = rows_of_slots(slot_mapping, cache.shape[1], rows_between)
        rows.index_copy_(0, index.long(), stored.reshape(len(stored), rows.shape[1]))


def _write_one(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot: int
) -> None:
    """Write the only token, in half the calls of torch that several tokens take."""
    if slot >= 0:
        at = divmod(slot, k_cache.shape[1])
        k_cache[at] = k[0]
        v_cache[at] = v[0]


def _check(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    if (
        k_scale is None
        and v_scale is None
        and k.dim() == 3
        and k_cache.dim() == 4
        and k.dtype in FLOAT_DTYPES
        and v.dtype == k_cache.dtype == v_cache.dtype == k.dtype
        and slot_mapping.dtype in (torch.int64, torch.int32)
        and v.shape == k.shape
        and v_cache.shape == k_cache.shape
        and k_cache.shape[2:] == k.shape[1:]
        and slot_mapping.shape == k.shape[:1]
        and k.stride(2) == v.stride(2) == 1
        and k.get_device() == v.get_device() == slot_mapping.get_device()
        and k.get_device() == k_cache.get_device() == v_cache.get_device()
    ):
        return  # what always holds, asked quickly; below what does not hold gets its message
    check_shape("k", k, (None, None, None))
    num_tokens, num_kv_heads, head_dim = k.shape
    check_float("k", k)
    check_shape("v", v, k.shape)
    check_shape("k_cache", k_cache, (None, None, num_kv_heads, head_dim))
    check_shape("v_cache", v_cache, k_cache.shape)
    check_last_dim_dense("k", k)
    check_last_dim_dense("v", v)
    check_same("v", v, "k", k)
    check_cache_dtype("k_cache", k_cache, "k", k, "k_scale", k_scale)
    check_cache_dtype("v_cache", v_cache, "k", k, "v_scale", v_scale)
    if v_cache.dtype != k_cache.dtype:
        raise ValueError(f"v_cache: expected {k_cache.dtype} as k_cache, got {v_cache.dtype}")
    check_shape("slot_mapping", slot_mapping, (num_tokens,))
    check_index("slot_mapping", slot_mapping, k.device)
