"""Norms of a row, alone or after the sum with the residual.

Knows weights. Knows nothing of where in a layer a norm stands.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from pagoda_kernels import add_rms_norm, rms_norm


class Norm(Protocol):
    """A norm over the last dim."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., N]`` for ``[..., N]``."""
        ...

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``residual + x`` normed, and that sum; neither input is changed."""
        ...


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """``x / rms(x) * weight``.

    Attributes:
        weight: ``[N]``.
        eps: added to the mean square.
        unit_offset: the factor is ``1 + weight``.
    """

    weight: torch.Tensor
    eps: float
    unit_offset: bool = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Norm`."""
        return rms_norm(x, self.weight, self.eps, unit_offset=self.unit_offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Norm`."""
        return add_rms_norm(x, residual, self.weight, self.eps, unit_offset=self.unit_offset)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """``(x - mean(x)) / std(x) * weight + bias``, in fp32, rounded once.

    Attributes:
        weight: ``[N]``, or ``[H, N]`` for x ``[T, H, N]``.
        bias: as `weight`, or None.
        eps: added to the variance.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Norm`."""
        if self.weight.dim() == 1:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        normed = F.layer_norm(x.float(), x.shape[-1:], None, None, self.eps) * self.weight
        return (normed if self.bias is None else normed + self.bias).to(x.dtype)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Norm`."""
        total = residual + x
        return self(total), total


def add_normed(
    norm: Norm | None, x: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `Norm.add`; without a norm both results are the sum."""
    if norm is not None:
        return norm.add(x, residual)
    total = residual + x
    return total, total
