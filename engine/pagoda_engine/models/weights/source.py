"""Where the tensors of a decoder come from, and how what a file holds becomes what is wanted.

Knows names, shapes and orders of rows. Knows nothing of files or layers.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.tensor_part import Arrange, Part
from pagoda_engine.models.rope_scaling import RopeDescription


class WeightSource(Protocol):
    """Where the tensors of a decoder come from."""

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return tensors joined: the elements of one part after those of another, as `shape`.

        Contiguous and on the engine's device; the caller owns it.

        Args:
            parts: in order.
            shape: of the whole, with as many elements as the parts together.
            dtype: None: the engine's.
        """
        ...


@runtime_checkable
class CodedWeightSource(WeightSource, Protocol):
    """One that may have weights as codes, as checkpoints do that are quantised already."""

    def take_weight(
        self, parts: Sequence[Part], shape: tuple[int, int]
    ) -> torch.Tensor | CodedWeight:
        """Return a weight ``[N, K]`` as `take`, or as codes if all its parts are stored so.

        Codes are on the engine's device.
        """
        ...


@runtime_checkable
class ScaleSource(WeightSource, Protocol):
    """One that may have scales of what is computed, as checkpoints do that were calibrated."""

    def take_scales(self, name: str, count: int) -> torch.Tensor | None:
        """Return ``[count]`` fp32 > 0 on the engine's device; None: there are none of that name.

        They may be stored as one number for all.
        """
        ...


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``[outputs, inputs]`` of a weight that is stored the other way round."""
    return tensor.t() if tensor.dim() == 2 else tensor


def heads_joined(num_heads: int) -> Arrange:
    """Rows of Q, then K, then V, of a tensor with all three of a head after one another."""

    def arrange(tensor: torch.Tensor) -> torch.Tensor:
        by_head = tensor.reshape(num_heads, 3, -1, *tensor.shape[1:])
        return by_head.transpose(0, 1).reshape(tensor.shape)

    return arrange


def turning_first(rope: RopeDescription | None, num_heads: int, head_dim: int) -> Arrange | None:
    """Rows of the first heads as kernels turn them, whatever pairs of dims a model turns.

    The dims that turn come first, the two of a pair half a rotation apart. Scores do not change
    when Q and K are reordered alike, so that no model needs a rotation of its own.

    Returns:
        None: they are so already.
    """
    if rope is None or not num_heads or not (rope.is_interleaved or rope.is_spread):
        return None
    dims, rotary_dim = torch.arange(head_dim), rope.rotary_dim(head_dim)
    if rope.is_interleaved:
        turning = dims[:rotary_dim].view(-1, 2).t().flatten()
    else:
        turning = dims.view(2, -1)[:, : rotary_dim // 2].flatten()
    is_still = torch.ones(head_dim, dtype=torch.bool)
    is_still[turning] = False
    order = torch.cat((turning, dims[is_still]))
    heads = torch.arange(num_heads)[:, None] * head_dim

    def arrange(tensor: torch.Tensor) -> torch.Tensor:
        rest = torch.arange(num_heads * head_dim, len(tensor))
        rows = torch.cat(((heads + order).flatten(), rest))
        return tensor.index_select(0, rows.to(tensor.device))

    return arrange


def turns_apart(tensor: torch.Tensor) -> torch.Tensor:
    """``[E, 2, N, ...]`` of ``[E, 2 * N, ...]``, where rows of two projections take turns."""
    return tensor.view(len(tensor), -1, 2, *tensor.shape[2:]).transpose(1, 2)


def one_after_another(steps: Sequence[Arrange]) -> Arrange | None:
    """All of them, in order; None for none."""
    if not steps:
        return None

    def arrange(tensor: torch.Tensor) -> torch.Tensor:
        for step in steps:
            tensor = step(tensor)
        return tensor

    return arrange
