"""Weights of e4m3, with a scale for the tensor, for each output, or for blocks of both."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.quantised.scheme import FLOATS, Kind, Wanted, dtype_of
from pagoda_engine.checkpoints.safetensors_header import StoredTensor

Block = tuple[int, int]

SCALES_OF_ACTIVATIONS = (
    ".input_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
)
"""What such checkpoints may say of activations, which are not quantised here, and of KV."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """One checkpoint's parameters.

    Attributes:
        name: of the format, for logs.
        block: outputs and inputs that share a scale; None: all, or all inputs of an output.
        scale: suffix of the scales.
        ignored: see `Scheme`.
    """

    name: str
    block: Block | None
    scale: str
    ignored: tuple[str, ...] = SCALES_OF_ACTIVATIONS

    @property
    def label(self) -> str:
        """See `Scheme`."""
        return "fp8" if self.name == "fp8" else f"{self.name.split()[0]}-fp8"

    def __str__(self) -> str:
        """See `Scheme`."""
        if self.block is None:
            return f"{self.name} (e4m3, scales of tensors or outputs)"
        return f"{self.name} (e4m3, blocks of {self.block[0]} x {self.block[1]})"

    def has(self, name: str, tensors: Mapping[str, StoredTensor]) -> bool:
        """See `Scheme`."""
        weight = tensors.get(f"{name}.weight")
        return weight is not None and weight.dtype == "F8_E4M3"

    def kind(self, name: str, tensors: Mapping[str, StoredTensor]) -> Kind:
        """See `Scheme`."""
        size = -1 if self.block is None else self.block[1]
        return Kind(0, size, "one", True, dtype_of(f"{name}.{self.scale}", tensors))

    def wanted(self, shape: tuple[int, int]) -> tuple[Wanted, ...]:
        """See `Scheme`."""
        outputs, inputs = shape
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (outputs,), (outputs, 1))
        if self.block is not None:
            shapes = ((-(-outputs // self.block[0]), -(-inputs // self.block[1])),)
        return (
            Wanted("weight", ("F8_E4M3",), (shape,)),
            Wanted(self.scale, FLOATS, shapes),
        )

    def weight(self, shape: tuple[int, int], found: Mapping[str, torch.Tensor]) -> CodedWeight:
        """See `Scheme`."""
        outputs, inputs = shape
        scales = found[self.scale]
        is_wrong = ~(scales.isfinite() & (scales > 0))
        if is_wrong.any():
            wrong = float(scales[is_wrong][0])
            raise ValueError(f"its {self.scale} has {wrong:g}, must be finite and above 0")
        if self.block is None:
            scales = scales.reshape(-1, 1).expand(outputs, 1)
        else:
            scales = scales.repeat_interleave(self.block[0], 0)[:outputs]
        return CodedWeight(
            codes=found["weight"],
            scales=scales,
            zeros=None,
            group_size=inputs if self.block is None else self.block[1],
            groups=None,
            bits=8,
        )
