"""Codes of a checkpoint in the form that the native products take, where they lose nothing by it.

Knows what codes stand for. Knows nothing of who packed them, or of layers.
"""

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.quantised.scheme import Kind
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.quantised_weight import (
    GROUP,
    LEVELS,
    Bits,
    QuantisedWeight,
    held_bits,
)

_CHUNK_ROWS = 64
_MIDDLE = 8  # of codes of 4 bits: levels and zero points about 0 are small


def held_codes(weight: CodedWeight) -> QuantisedWeight | None:
    """Return a weight's own codes for products on this machine; None: it must be widened.

    Codes of 4 bits are kept, with their zero points beside their scales if they have more than one;
    codes of 8 bits become whole numbers, zero points taken off, if they fit. Scales are bf16 there.
    In bf16 that rounds each as widening would round each weight; in fp32 only scales that bf16
    holds exactly will do.
    """
    num_inputs = weight.shape[1]
    example = torch.empty(1, num_inputs, dtype=weight.dtype, device=weight.codes.device)
    if (
        weight.codes.dtype.is_floating_point
        or weight.groups is not None
        or (weight.group_size % GROUP and weight.group_size < num_inputs)
        or not packed_linear.can_pack(example, 8)
    ):
        return None
    scales = weight.scales.bfloat16()
    if weight.dtype is not torch.bfloat16 and not torch.equal(
        scales.float(), weight.scales.float()
    ):
        return None
    columns = torch.arange(0, num_inputs, GROUP) // weight.group_size
    scales = scales.index_select(1, columns).contiguous()
    if weight.levels is not None:
        assert weight.zeros is None, "levels have no zero points"
        return QuantisedWeight(weight.codes.view(torch.int8), scales, 4, weight.levels)
    if weight.bits == 4:
        zero = _one_zero(weight)
        levels = tuple(code - (_MIDDLE if zero is None else zero) for code in range(len(LEVELS)))
        zeros = None
        if zero is None and weight.zeros is not None:
            zeros = (weight.zeros - _MIDDLE).to(torch.int8).index_select(1, columns).contiguous()
        return QuantisedWeight(weight.codes.view(torch.int8), scales, 4, levels, zeros)
    codes = _signed(weight)
    bits: Bits = 8
    return None if codes is None else QuantisedWeight(codes, scales, bits)


def bits_held(kind: Kind, example: torch.Tensor) -> float | None:
    """Return the bits a weight takes as `held_codes` will keep it, scale and all; None: widened.

    Where only the codes themselves can tell, it is reckoned to be widened.

    Args:
        kind: of its codes.
        example: ``[1, K]`` of the dtype, on the device.
    """
    width = example.shape[1]
    if (
        not kind.bits
        or not kind.is_ordered
        or (kind.group_size != -1 and kind.group_size % GROUP and kind.group_size < width)
        or not packed_linear.can_pack(example, 8)
        or (example.dtype is not torch.bfloat16 and kind.scale_dtype != "BF16")
    ):
        return None
    if kind.bits == 4:
        return held_bits(4, has_zeros=kind.zeros == "many")
    return held_bits(8) if kind.zeros == "one" else None


def _one_zero(weight: CodedWeight) -> int | None:
    """Return the zero point that all groups have."""
    if weight.zeros is None:
        return 0
    low, high = weight.zeros.aminmax()
    return int(low) if bool(low == high) else None


def _signed(weight: CodedWeight) -> torch.Tensor | None:
    """Return ``[N, K]`` int8 of codes less their zero points; None if one does not fit."""
    if weight.zeros is None and weight.codes.dtype is torch.int8:
        return weight.codes
    found = torch.empty(weight.shape, dtype=torch.int8)
    for first in range(0, len(found), _CHUNK_ROWS):
        rows = slice(first, first + _CHUNK_ROWS)
        numbers = weight.less_zeros(rows)
        low, high = numbers.aminmax()
        if low < -128 or high > 127:
            return None
        found[rows] = numbers
    return found
