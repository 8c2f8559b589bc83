"""``x @ weight.T + bias``, with the weight kept in the form that serves this device best.

On CPU the weight is packed once for the native operators, where a row's result depends on that row
alone, whatever the batch. Elsewhere, and for dtypes that those have not, it is torch's product, and
a quantised weight is what its codes stand for, dense.
"""

import torch
import torch.nn.functional as F

from pagoda_engine.models.description import Activation
from pagoda_kernels import gelu_mul, silu_mul
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.quantised_weight import Bits, quantise


class Linear:
    """One projection. Owns its weight, packed or not."""

    __slots__ = ("_bias", "_weight", "packed")

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        bits: Bits | None = None,
    ) -> None:
        """Take over a weight.

        Args:
            weight: ``[N, K]`` on the engine's device and in its dtype.
            bias: ``[N]`` or None.
            bits: quantise it; None: as it is.
        """
        weight, bits = holdable(weight, bits)
        self.packed: PackedLinear | None = None
        self._weight: torch.Tensor | None = None
        self._bias = bias
        if packed_linear.can_pack(weight, bits):
            self.packed = PackedLinear(weight, bias, bits=bits)
        else:
            self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``."""
        if self.packed is not None:
            return self.packed(x)
        assert self._weight is not None, "one of the two is there"
        return F.linear(x, self._weight, self._bias)


class GatedLinear:
    """``activation(gate) * up`` of two projections with one input. Owns their weights."""

    __slots__ = ("_activation", "_joined", "packed")

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: Activation = "silu",
        bits: Bits | None = None,
    ) -> None:
        """Take over both weights.

        Args:
            weight: ``[2 * N, K]``, rows of gate, then up, on the engine's device and in its dtype.
            bias: ``[2 * N]`` or None.
            activation: of the gate.
            bits: quantise them; None: as they are.
        """
        weight, bits = holdable(weight, bits)
        self.packed: PackedLinear | None = None
        self._joined: Linear | None = None
        self._activation = activation
        if activation == "silu" and packed_linear.can_pack(weight, bits):
            self.packed = PackedLinear(weight, bias, is_gated=True, bits=bits)
        else:
            self._joined = Linear(weight, bias, bits)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``."""
        if self.packed is not None:
            return self.packed(x)
        assert self._joined is not None, "one of the two is there"
        gate_up = self._joined(x)
        if self._activation == "silu":
            return silu_mul(gate_up)
        return gelu_mul(gate_up, approximate=_APPROXIMATIONS[self._activation])


class ActivatedLinear:
    """``activation(x @ weight.T + bias)``. Owns its weight."""

    __slots__ = ("_activation", "_linear")

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation,
        bits: Bits | None = None,
    ) -> None:
        """Take over a weight; arguments as `Linear`'s."""
        self._linear = Linear(weight, bias, bits)
        self._activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``."""
        y = self._linear(x)
        if self._activation == "silu":
            return F.silu(y)
        return F.gelu(y, approximate=_APPROXIMATIONS[self._activation])


_APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


def holdable(weight: torch.Tensor, bits: Bits | None) -> tuple[torch.Tensor, Bits | None]:
    """Return a weight and its bits as they can be held here: dense, with the values of its codes.

    Args:
        weight: ``[N, K]`` or ``[E, N, K]``; never written to.
        bits: None: it is left alone.
    """
    if bits is None or packed_linear.can_pack(weight.flatten(0, -2), bits):
        return weight, bits
    dense = quantise(weight.flatten(0, -2), bits).dequantised(weight.dtype)
    return dense.view(weight.shape), None
