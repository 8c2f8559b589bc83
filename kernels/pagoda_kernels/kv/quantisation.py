"""K and V in one byte per element: cached value = round(value / scale), scales per tensor or head.

Knows dtypes and scales. Knows nothing of slots, sequences or how scales were calibrated.
"""

import torch

from pagoda_kernels.checks import check_fp32, check_same
from pagoda_kernels.one_byte_dtypes import LARGEST


def check_cache_dtype(
    name: str,
    cache: torch.Tensor,
    like_name: str,
    like: torch.Tensor,
    scale_name: str,
    scale: torch.Tensor | None,
) -> None:
    """Raise ValueError unless the cache has the dtype of `like` or is quantised and has a scale."""
    if cache.dtype not in LARGEST:
        check_same(name, cache, like_name, like)
        if scale is not None:
            raise ValueError(f"{scale_name}: expected None for a {cache.dtype} cache, got a tensor")
        return
    if cache.device != like.device:
        raise ValueError(f"{name}: expected on {like.device} as {like_name}, got {cache.device}")
    if scale is None:
        raise ValueError(f"{scale_name}: expected a tensor for a {cache.dtype} cache, got None")
    num_kv_heads = cache.shape[2]
    if scale.dim() != 1 or len(scale) not in (1, num_kv_heads):
        raise ValueError(
            f"{scale_name}: expected shape [1] or [{num_kv_heads}], got {list(scale.shape)}"
        )
    check_fp32(scale_name, scale, like.device)


def quantise(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``round(clamp(x * (1 / scale)))`` to the nearest even, in fp32.

    Args:
        x: ``[T, HK, D]`` fp32, fp16 or bf16.
        scale: ``[1]`` or ``[HK]`` fp32, > 0.
        dtype: a key of `LARGEST`.
    """
    largest = LARGEST[dtype]
    scaled = (x.float() * scale.reciprocal()[:, None]).clamp_(-largest, largest)
    return scaled.round_().to(dtype) if dtype == torch.int8 else scaled.to(dtype)


def dequantise(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x * scale`` in fp32, rounded to `dtype`; x is ``[..., HK, D]``, scale as in `quantise`."""
    return x.float().mul_(scale[:, None]).to(dtype)


def bytes_of(cache: torch.Tensor) -> torch.Tensor:
    """The cache, as bytes where torch cannot index its dtype on every device."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
