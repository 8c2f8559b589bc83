"""GPTQ: eight (or four) consecutive inputs to an int32, the first in its lowest bits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
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


@dataclass(frozen=True, slots=True)
class Gptq:
    """One checkpoint's parameters.

    Attributes:
        bits: 4 or 8.
        group_size: inputs that share a scale; -1: all.
        zero_offset: what is added to stored zero points: 1 in ``gptq``, 0 in ``gptq_v2``. The
            largest stored one then stands for 2**bits, as in `pack_gptq` of the kernels.
        is_symmetric: the configuration says that all zero points are the same.
        is_ordered: it says that groups follow one another.
    """

    bits: int
    group_size: int
    zero_offset: int
    is_symmetric: bool = False
    is_ordered: bool = False

    ignored: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """See `Scheme`."""
        return f"gptq-int{self.bits}"

    def __str__(self) -> str:
        """See `Scheme`."""
        groups = "one group" if self.group_size == -1 else f"groups of {self.group_size}"
        return f"gptq ({self.bits} bits, {groups})"

    def has(self, name: str, tensors: Mapping[str, StoredTensor]) -> bool:
        """See `Scheme`."""
        return f"{name}.qweight" in tensors

    def kind(self, name: str, tensors: Mapping[str, StoredTensor]) -> Kind:
        """See `Scheme`."""
        return Kind(
            bits=self.bits,
            group_size=self.group_size,
            zeros="one" if self.is_symmetric else "many",
            is_ordered=self.is_ordered or self.group_size == -1,
            scale_dtype=dtype_of(f"{name}.scales", tensors),
        )

    def wanted(self, shape: tuple[int, int]) -> tuple[Wanted, ...]:
        """See `Scheme`."""
        (outputs, inputs), in_word = shape, 32 // self.bits
        if outputs % in_word or inputs % in_word:
            raise ValueError(
                f"is [{outputs}, {inputs}], both must be multiples of {in_word} for gptq with "
                f"{self.bits} bits"
            )
        count = num_groups(inputs, self.group_size)
        return (
            Wanted("qweight", ("I32",), ((inputs // in_word, outputs),)),
            Wanted("qzeros", ("I32",), ((count, outputs // in_word),)),
            Wanted("scales", FLOATS, ((count, outputs),)),
            Wanted("g_idx", ("I32",), ((inputs,), (0,)), is_optional=True),
        )

    def weight(self, shape: tuple[int, int], found: Mapping[str, torch.Tensor]) -> CodedWeight:
        """See `Scheme`."""
        inputs, count = shape[1], len(found["scales"])
        size = inputs if self.group_size == -1 else self.group_size
        return CodedWeight(
            codes=unpacked_down(found["qweight"], self.bits),
            scales=found["scales"].t().contiguous(),
            zeros=unpacked(found["qzeros"], self.bits).t().to(torch.int16) + self.zero_offset,
            group_size=size,
            groups=groups_of(found.get("g_idx"), size, count),
            bits=self.bits,
        )
