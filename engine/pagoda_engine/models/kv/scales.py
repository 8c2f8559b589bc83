"""Scales of K and V that are cached in one byte: one for each layer and KV head.

They belong to the model, not to what is cached, so a token's codes follow from the token alone: it
is cached the same in whatever chunk, block or worker. Knows names of tensors. Knows no cache.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pagoda_engine.models.weights.source import ScaleSource, WeightSource
from pagoda_kernels.one_byte_dtypes import LARGEST

NAMES = (
    ("self_attn.k_scale", "self_attn.v_scale"),
    ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    ("self_attn.kv_scale", "self_attn.kv_scale"),
)
"""What tools that calibrate checkpoints for e4m3 call a layer's scales, after its prefix."""


@dataclass(frozen=True, slots=True)
class KvScales:
    """Scales of one layer, on the device of its weights: cached K times `k` is K.

    Attributes:
        k: ``[HK]`` fp32 contiguous.
        v: as `k`.
        is_stored: they are the checkpoint's.
    """

    k: torch.Tensor
    v: torch.Tensor
    is_stored: bool


def stored_scales(
    source: WeightSource, prefix: str, *, num_kv_heads: int, dtype: torch.dtype
) -> KvScales | None:
    """Return a layer's scales as its checkpoint says; None where it says nothing.

    Args:
        source: of the model's tensors.
        prefix: of the layer's names.
        num_kv_heads: HK.
        dtype: of the cache. Checkpoints have scales for e4m3, whose largest number is another one
            than int8's.

    Raises:
        CheckpointError: a scale is no positive number, or cannot be read.
    """
    ratio = LARGEST[torch.float8_e4m3fn] / LARGEST[dtype]
    if not isinstance(source, ScaleSource):
        return None
    for names in NAMES:
        k, v = (source.take_scales(prefix + name, num_kv_heads) for name in names)
        if k is not None and v is not None:
            return KvScales(k * ratio, v * ratio, is_stored=True)
    return None


def digest_scales(scales: Iterable[KvScales]) -> str:
    """Return what tells these scales of all layers from others."""
    hashed = hashlib.blake2b(digest_size=8)
    for each in scales:
        hashed.update(each.k.cpu().numpy().tobytes() + each.v.cpu().numpy().tobytes())
    return hashed.hexdigest()
