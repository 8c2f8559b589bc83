"""How much memory a decoder's weights really take."""

from collections.abc import Iterator
from typing import Any

import torch

from pagoda_engine.models.decoder import Decoder
from pagoda_kernels.native.packed_linear import PackedLinear


def held_bytes(decoder: Decoder) -> int:
    """Return the bytes of a decoder's weights, each once: all tensors but rotations and slopes."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors_of(decoder)}.values())


def packed_bytes(decoder: Decoder) -> int:
    """As `held_bytes`, what is packed included."""
    packed = {id(each): each.num_bytes for each in _packed_of(decoder)}
    return held_bytes(decoder) + sum(packed.values())


def _tensors_of(part: Any) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _tensors_of(item)
    elif type(part).__module__.startswith("pagoda_engine.models"):
        for name in getattr(part, "__slots__", None) or vars(part):
            if name not in ("cos_sin", "alibi_slopes"):
                yield from _tensors_of(getattr(part, name))


def _packed_of(part: Any) -> Iterator[PackedLinear]:
    if isinstance(part, PackedLinear):
        yield part
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _packed_of(item)
    elif type(part).__module__.startswith(("pagoda_engine.models", "pagoda_kernels.native.packed")):
        for name in getattr(part, "__slots__", None) or vars(part):
            yield from _packed_of(getattr(part, name))
