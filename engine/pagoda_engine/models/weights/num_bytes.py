"""How much memory a decoder's weights take, before any of them is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pagoda_engine.checkpoints import mxfp4
from pagoda_engine.checkpoints.quantised.scheme import Kind, Scheme
from pagoda_engine.checkpoints.safetensors_header import StoredTensor
from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.held_codes import bits_held
from pagoda_engine.models.quantization import NONE, Quantization
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.quantised_weight import GROUP, Bits, held_bits

_WEIGHT = ".weight"
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Stored:
    """What decides how projections are held.

    Attributes:
        quantization: that they are given as they are read.
        scheme: of a checkpoint that is quantised already.
        tensors: of its files, by name; needed of files with quantised weights.
        device: of the weights.
    """

    quantization: Quantization = NONE
    scheme: Scheme | None = None
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    device: torch.device = _CPU


def weight_bytes(
    description: DecoderDescription, dtype: torch.dtype, stored: Stored | None = None
) -> int:
    """Return the size of all weights on the device, every tied one once.

    Counted by what `build_decoder` asks for, so that the two cannot differ. Rows that packed
    weights are rounded up by are not counted, and bf16 counts in full: whether twelve bits hold it
    (`pagoda_kernels.native.twelve_bits`) shows as it is read.

    Args:
        description: of the decoder.
        dtype: of what has no codes.
        stored: None: nothing has codes.
    """
    counting = _Counting(description, dtype, stored or Stored())
    build_decoder(description, counting, max_positions=1, device=torch.device("meta"))
    return counting.num_bytes


class _Counting:
    """A `CodedWeightSource` without weights."""

    def __init__(self, description: DecoderDescription, dtype: torch.dtype, stored: Stored) -> None:
        self._names = description.names
        self._is_tied = description.tie_word_embeddings
        self._dtype = dtype
        self._stored = stored
        self.num_bytes = 0

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Count what stays dense; of tables the output projection may have codes."""
        bits, name = self._stored.quantization.output, parts[0].name.removesuffix(_WEIGHT)
        if self._is_tied and name == self._names.embedding and self._packs(shape, bits):
            self._add_codes(shape, held_bits(bits))  # beside the table, which stays dense
        if name == self._names.output and self._packs(shape, bits):
            self._add_codes(shape, held_bits(bits))
        else:
            self.num_bytes += math.prod(shape) * (dtype or self._dtype).itemsize
        return torch.empty(shape, device="meta")

    def take_weight(self, parts: Sequence[Part], shape: tuple[int, int]) -> torch.Tensor:
        """Count the weight of a projection, or of a router."""
        bits = self._bits(parts, shape)
        if bits is None:
            return self.take(parts, shape)
        self._add_codes(shape, bits)
        return torch.empty(shape, device="meta")

    def _add_codes(self, shape: Sequence[int], bits: float) -> None:
        num_rows, width = shape
        self.num_bytes += int(num_rows * -(-width // GROUP) * GROUP * bits / 8)

    def _packs(self, shape: Sequence[int], bits: Bits | None) -> bool:
        """Tell whether a weight is given codes here."""
        return bits is not None and packed_linear.can_pack(self._example(shape), bits)

    def _example(self, shape: Sequence[int]) -> torch.Tensor:
        return torch.empty(1, shape[-1], dtype=self._dtype, device=self._stored.device)

    def _bits(self, parts: Sequence[Part], shape: tuple[int, int]) -> float | None:
        """Return bits of a weight with its scale; None: it is dense."""
        given = self._stored.quantization.projections
        if given is not None:
            small = (self._names.router, self._names.shared_expert_gate)
            is_small = parts[0].name.removesuffix(_WEIGHT).endswith(tuple(filter(None, small)))
            return held_bits(given) if not is_small and self._packs(shape, given) else None
        if parts[0].scales or self._has_mxfp4_blocks(parts):
            return held_bits(4) if self._packs(shape, 4) else None
        kinds = {self._kind(part) for part in parts}
        kind = kinds.pop() if len(kinds) == 1 else None
        return None if kind is None else bits_held(kind, self._example(shape))

    def _has_mxfp4_blocks(self, parts: Sequence[Part]) -> bool:
        tensors = self._stored.tensors
        stored = [tensors[part.name].dtype for part in parts if part.name in tensors]
        return stored == [mxfp4.GGUF_TYPE] * len(parts)

    def _kind(self, part: Part) -> Kind | None:
        scheme, tensors = self._stored.scheme, self._stored.tensors
        if scheme is None:
            return None
        name = part.name.removesuffix(_WEIGHT)
        for each in (name, name.removeprefix(self._names.optional_prefix)):
            if scheme.has(each, tensors):
                return scheme.kind(each, tensors)
        return None
