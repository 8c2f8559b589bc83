"""Whole numbers of compressed-tensors: a byte each, or packed along the inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.quantised.fp8 import SCALES_OF_ACTIVATIONS
from pagoda_engine.checkpoints.quantised.scheme import (
    FLOATS,
    Kind,
    Wanted,
    dtype_of,
    groups_of,
    num_groups,
)
from pagoda_engine.checkpoints.quantised.unpack import unpacked, unpacked_down
from pagoda_engine.checkpoints.safetensors_header import StoredTensor

_IGNORED = (*SCALES_OF_ACTIVATIONS, ".input_zero_point", ".output_zero_point")


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """``pack-quantized``: codes are signed, and packed with half their range added.

    Attributes:
        bits: 4 or 8.
        group_size: inputs that share a scale; -1: all of an output.
        ignored: see `Scheme`.
    """

    bits: int
    group_size: int
    ignored: tuple[str, ...] = _IGNORED

    @property
    def label(self) -> str:
        """See `Scheme`."""
        return f"compressed-tensors-int{self.bits}"

    def __str__(self) -> str:
        """See `Scheme`."""
        groups = "one group" if self.group_size == -1 else f"groups of {self.group_size}"
        return f"compressed-tensors pack-quantized ({self.bits} bits, {groups})"

    def has(self, name: str, tensors: Mapping[str, StoredTensor]) -> bool:
        """See `Scheme`."""
        return f"{name}.weight_packed" in tensors

    def kind(self, name: str, tensors: Mapping[str, StoredTensor]) -> Kind:
        """See `Scheme`."""
        return Kind(
            bits=self.bits,
            group_size=self.group_size,
            zeros="many" if f"{name}.weight_zero_point" in tensors else "one",
            is_ordered=f"{name}.weight_g_idx" not in tensors,
            scale_dtype=dtype_of(f"{name}.weight_scale", tensors),
        )

    def wanted(self, shape: tuple[int, int]) -> tuple[Wanted, ...]:
        """See `Scheme`."""
        (outputs, inputs), in_word = shape, 32 // self.bits
        count = num_groups(inputs, self.group_size)
        return (
            Wanted("weight_packed", ("I32",), ((outputs, -(-inputs // in_word)),)),
            Wanted("weight_scale", FLOATS, ((outputs, count),)),
            Wanted(
                "weight_zero_point",
                ("I32",),
                ((-(-outputs // in_word), count),),
                is_optional=True,
            ),
            Wanted("weight_shape", ("I64", "I32"), ((2,),), is_optional=True),
            Wanted("weight_g_idx", ("I32",), ((inputs,),), is_optional=True),
        )

    def weight(self, shape: tuple[int, int], found: Mapping[str, torch.Tensor]) -> CodedWeight:
        """See `Scheme`."""
        outputs, inputs = shape
        said = found["weight_shape"].tolist() if "weight_shape" in found else [outputs, inputs]
        if said != [outputs, inputs]:
            raise ValueError(f"weight_shape is {said}, the configuration says {[outputs, inputs]}")
        scales, packed_zeros = found["weight_scale"], found.get("weight_zero_point")
        size = inputs if self.group_size == -1 else self.group_size
        if packed_zeros is None:
            zeros = torch.full(scales.shape, 1 << self.bits - 1, dtype=torch.int16)
            zeros = zeros.to(scales.device)
        else:
            zeros = unpacked_down(packed_zeros, self.bits).t()[:outputs].to(torch.int16)
        return CodedWeight(
            codes=unpacked(found["weight_packed"], self.bits)[:, :inputs].contiguous(),
            scales=scales,
            zeros=zeros,
            group_size=size,
            groups=groups_of(found.get("weight_g_idx"), size, scales.shape[1]),
            bits=self.bits,
        )


@dataclass(frozen=True, slots=True)
class ByteIntegers:
    """``int-quantized``: a byte each, with a scale for the tensor, an output or a group.

    Attributes:
        group_size: inputs that share a scale; -1: all.
        ignored: see `Scheme`.
    """

    group_size: int
    ignored: tuple[str, ...] = _IGNORED

    @property
    def label(self) -> str:
        """See `Scheme`."""
        return "compressed-tensors-int8"

    def __str__(self) -> str:
        """See `Scheme`."""
        return "compressed-tensors int-quantized (8 bits)"

    def has(self, name: str, tensors: Mapping[str, StoredTensor]) -> bool:
        """See `Scheme`."""
        weight = tensors.get(f"{name}.weight")
        return weight is not None and weight.dtype == "I8"

    def kind(self, name: str, tensors: Mapping[str, StoredTensor]) -> Kind:
        """See `Scheme`."""
        return Kind(
            bits=8,
            group_size=self.group_size,
            zeros="many" if f"{name}.weight_zero_point" in tensors else "one",
            is_ordered=True,
            scale_dtype=dtype_of(f"{name}.weight_scale", tensors),
        )

    def wanted(self, shape: tuple[int, int]) -> tuple[Wanted, ...]:
        """See `Scheme`."""
        outputs, inputs = shape
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (outputs,), (outputs, 1))
        if self.group_size != -1:
            shapes = ((outputs, num_groups(inputs, self.group_size)),)
        return (
            Wanted("weight", ("I8",), (shape,)),
            Wanted("weight_scale", FLOATS, shapes),
            Wanted("weight_zero_point", ("I8",), shapes, is_optional=True),
        )

    def weight(self, shape: tuple[int, int], found: Mapping[str, torch.Tensor]) -> CodedWeight:
        """See `Scheme`."""
        outputs, inputs = shape
        scales, zeros = found["weight_scale"], found.get("weight_zero_point")
        if self.group_size == -1:
            scales = scales.reshape(-1, 1).expand(outputs, 1)
            zeros = None if zeros is None else zeros.reshape(-1, 1).expand(outputs, 1)
        return CodedWeight(
            codes=found["weight"],
            scales=scales,
            zeros=None if zeros is None else zeros.to(torch.int16),
            group_size=inputs if self.group_size == -1 else self.group_size,
            groups=None,
            bits=8,
        )
