"""What each layer is told of a token besides the residual: a row of its id and of its embedding.

Knows weights. Knows nothing of attention or of what else a layer does.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda_engine.models.linear import ActivatedLinear, Linear
from pagoda_engine.models.norm import Norm, RmsNorm
from pagoda_kernels.native.layer_weights import PackedLayerInput


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """``(norm(projection(x) / sqrt(hidden)) + sqrt(W) * rows[token]) / sqrt(2)`` of all L layers.

    Attributes:
        rows: ``[V, L * W]``.
        projection: ``[L * W, hidden]``, of the embeddings.
        norm: over W.
        width: W.
        hidden_size: of the embeddings.
    """

    rows: torch.Tensor
    projection: Linear
    norm: Norm
    width: int
    hidden_size: int

    def __call__(self, token_ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return ``[T, L, W]`` for ``[T]`` int64 and what the first layer reads ``[T, hidden]``."""
        scale = float(
            torch.tensor(self.width**0.5, dtype=self.rows.dtype)
        )  # rounded, as in training
        own = (F.embedding(token_ids, self.rows) * scale).view(len(token_ids), -1, self.width)
        projected = self.projection(embedded) * self.hidden_size**-0.5
        return (self.norm(projected.view(own.shape)) + own) * 2**-0.5


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What one layer adds to the residual x at its end: ``norm(projection(gate(x) * input))``.

    Attributes:
        gate: ``[W, hidden]``, activated.
        projection: ``[hidden, W]``.
        norm: over hidden.
    """

    gate: ActivatedLinear
    projection: Linear
    norm: Norm

    @property
    def packed(self) -> PackedLayerInput | None:
        """As native operators take it; None if a projection is not packed."""
        gate, projection, norm = self.gate.packed, self.projection.packed, self.norm
        if gate is None or projection is None or not isinstance(norm, RmsNorm):
            return None
        return PackedLayerInput(gate, projection, norm.weight)

    def __call__(self, residual: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[T, hidden]`` for ``[T, hidden]`` and the layer's inputs ``[T, W]``."""
        return self.norm(self.projection(self.gate(residual) * inputs))
