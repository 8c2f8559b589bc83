"""Takes tables, norms and projections of a decoder from a WeightSource.

Knows how a description lays them out. Knows nothing of what stands where in a layer.
"""

from collections.abc import Sequence

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.tensor_part import Arrange, Part
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.kv.scales import KvScales, stored_scales
from pagoda_engine.models.norm import LayerNorm, Norm, RmsNorm
from pagoda_engine.models.projections import Projection
from pagoda_engine.models.weights.source import (
    CodedWeightSource,
    WeightSource,
    one_after_another,
    transposed,
)
from pagoda_kernels.native.quantised_weight import Bits
from pagoda_kernels.one_byte_dtypes import LARGEST


class WeightTaker:
    """A source, and the description that says what it holds."""

    def __init__(
        self,
        description: DecoderDescription,
        source: WeightSource,
        device: torch.device,
        bits: Bits | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """Begin with nothing taken.

        Args:
            description: of the decoder.
            source: of its tensors.
            device: where they are.
            bits: of the projections; None: as they are.
            kv_dtype: of the cache; None: as activations.
        """
        self.description = description
        self.source = source
        self.bits = bits
        self._device = device
        self._kv_dtype = kv_dtype

    def table(self, name: str, num_rows: int) -> torch.Tensor:
        """Return ``[num_rows, hidden]`` of one tensor."""
        shape = (num_rows, self.description.hidden_size)
        return self.source.take([Part(f"{name}.weight", shape)], shape)

    def vector(self, name: str, size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return ``[size]`` of one tensor, which has this name to the end."""
        return self.source.take([Part(name, (size,))], (size,), dtype)

    def norm(self, name: str, prefix: str = "") -> Norm:
        """Return a norm of the residual's width."""
        shape = (self.description.hidden_size,)
        weight = self.source.take([Part(f"{prefix}{name}.weight", shape)], shape)
        eps, kind = self.description.norm_eps, self.description.norm
        if kind != "layer":
            return RmsNorm(weight, eps, unit_offset=kind == "rms_unit_offset")
        bias = None
        if self.description.norm_bias:
            bias = self.source.take([Part(f"{prefix}{name}.bias", shape)], shape)
        return LayerNorm(weight, bias, eps)

    def optional_norm(self, name: str, prefix: str = "") -> Norm | None:
        """As `norm`; None without a name."""
        return self.norm(name, prefix) if name else None

    def kv_scales(self, prefix: str, num_kv_heads: int) -> KvScales | None:
        """Return a layer's for a cache in one byte: as the checkpoint says, or 1; else None."""
        if self._kv_dtype not in LARGEST:
            return None
        found = stored_scales(self.source, prefix, num_kv_heads=num_kv_heads, dtype=self._kv_dtype)
        if found is not None:
            return found
        k, v = (torch.ones(num_kv_heads, device=self._device) for _ in "kv")
        return KvScales(k, v, is_stored=False)

    def projection(
        self, projection: Projection, *, has_bias: bool
    ) -> tuple[torch.Tensor | CodedWeight, torch.Tensor | None]:
        """Return its joined weight ``[N, K]``, and its joined bias or None."""
        return self.weights(
            projection.names,
            projection.num_rows,
            projection.num_columns,
            has_bias=has_bias,
            arranges=projection.arranges,
        )

    def weights(
        self,
        names: Sequence[str],
        num_rows: Sequence[int],
        num_columns: int,
        *,
        has_bias: bool,
        arranges: Sequence[Arrange | None] | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[torch.Tensor | CodedWeight, torch.Tensor | None]:
        """Return the joined weight ``[N, K]`` of projections, and their joined bias or None.

        Args:
            names: of the projections; one for several if the checkpoint has them joined.
            num_rows: outputs of each.
            num_columns: inputs of all.
            has_bias: they have biases.
            arranges: for each name what brings rows into order; None: they are.
            dtype: None: the engine's.
        """
        total = sum(num_rows)
        rows = num_rows if len(names) == len(num_rows) else [total]
        steps = arranges or [None] * len(names)
        weights, biases = [], []
        for name, count, arrange in zip(names, rows, steps, strict=True):
            if self.description.names.is_transposed:
                shape = (num_columns, count)
                both = [transposed] if arrange is None else [transposed, arrange]
                part = Part(f"{name}.weight", shape, one_after_another(both))
            else:
                shape = (count, num_columns)
                part = Part(f"{name}.weight", shape, arrange)
            weights.append(part)
            biases.append(Part(f"{name}.bias", (count,), arrange))
        weight = self.rows(weights, (total, num_columns), dtype)
        return weight, self.source.take(biases, (total,), dtype) if has_bias else None

    def rows(
        self, parts: Sequence[Part], shape: tuple[int, int], dtype: torch.dtype | None = None
    ) -> torch.Tensor | CodedWeight:
        """Return a weight ``[N, K]``, as codes if it is stored so and shall not be others.

        `dtype` is that of what is not; None: the model's.
        """
        may_be_codes = self.bits is None and dtype is None
        if may_be_codes and isinstance(self.source, CodedWeightSource):
            return self.source.take_weight(parts, shape)
        return self.source.take(parts, shape, dtype)
