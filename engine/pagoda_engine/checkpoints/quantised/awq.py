"""AWQ, version gemm: eight outputs to an int32, interleaved."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.quantised.scheme import FLOATS, Kind, Wanted, dtype_of, num_groups
from pagoda_engine.checkpoints.safetensors_header import StoredTensor
from pagoda_kernels.matmul.pack import AWQ_NIBBLE_OF_COLUMN

_BITS, _IN_WORD = 4, 8


@dataclass(frozen=True, slots=True)
class Awq:
    """One checkpoint's parameters.

    Attributes:
        group_size: inputs that share a scale; -1: all.
    """

    group_size: int

    ignored: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """See `Scheme`."""
        return "awq-int4"

    def __str__(self) -> str:
        """See `Scheme`."""
        groups = "one group" if self.group_size == -1 else f"groups of {self.group_size}"
        return f"awq (4 bits, {groups})"

    def has(self, name: str, tensors: Mapping[str, StoredTensor]) -> bool:
        """See `Scheme`."""
        return f"{name}.qweight" in tensors

    def kind(self, name: str, tensors: Mapping[str, StoredTensor]) -> Kind:
        """See `Scheme`."""
        return Kind(_BITS, self.group_size, "many", True, dtype_of(f"{name}.scales", tensors))

    def wanted(self, shape: tuple[int, int]) -> tuple[Wanted, ...]:
        """See `Scheme`."""
        outputs, inputs = shape
        if outputs % _IN_WORD:
            raise ValueError(f"has {outputs} outputs, awq packs multiples of {_IN_WORD}")
        count = num_groups(inputs, self.group_size)
        return (
            Wanted("qweight", ("I32",), ((inputs, outputs // _IN_WORD),)),
            Wanted("qzeros", ("I32",), ((count, outputs // _IN_WORD),)),
            Wanted("scales", FLOATS, ((count, outputs),)),
        )

    def weight(self, shape: tuple[int, int], found: Mapping[str, torch.Tensor]) -> CodedWeight:
        """See `Scheme`."""
        return CodedWeight(
            codes=_by_output(found["qweight"]),
            scales=found["scales"].t().contiguous(),
            zeros=_by_output(found["qzeros"]).to(torch.int16),
            group_size=shape[1] if self.group_size == -1 else self.group_size,
            groups=None,
            bits=_BITS,
        )


def _by_output(words: torch.Tensor) -> torch.Tensor:
    """Return ``[8 * C, R]`` uint8 of int32 words ``[R, C]``."""
    words = words.t().contiguous()
    shape = (len(words), _IN_WORD, words.shape[1])
    columns = torch.empty(shape, dtype=torch.uint8, device=words.device)
    for column, nibble in enumerate(AWQ_NIBBLE_OF_COLUMN):
        columns[:, column] = words >> 4 * nibble & 15
    return columns.flatten(0, 1)
