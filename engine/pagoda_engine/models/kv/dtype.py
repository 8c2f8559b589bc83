"""The number format of cached K and V, by the names of the setting."""

from collections.abc import Mapping

import torch

from pagoda_engine.errors import InvalidConfigError
from pagoda_engine.models.description import DecoderDescription

AUTO = "auto"
_ONE_BYTE: Mapping[str, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
KV_CACHE_DTYPES = (AUTO, *_ONE_BYTE)


def resolve_kv_dtype(name: str, description: DecoderDescription, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of KV of a model whose activations are `dtype`; that itself for ``auto``.

    Raises:
        InvalidConfigError: there is none of that name, or the model caches latents.
    """
    if name == AUTO:
        return dtype
    if name not in _ONE_BYTE:
        raise InvalidConfigError("kv_cache_dtype", name, "one of " + ", ".join(KV_CACHE_DTYPES))
    if description.latent is not None:
        limit = f"auto for {description.architecture}: its latents are not cached in one byte"
        raise InvalidConfigError("kv_cache_dtype", name, limit)
    return _ONE_BYTE[name]
