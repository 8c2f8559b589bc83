"""``x @ weight.T + bias``, with the weight kept in the form that serves this device best.

On CPU the weight is packed once for the native operators, where a row's result depends on that row
alone, whatever the batch. Elsewhere, and for dtypes that those have not, it is torch's product, and
a quantised weight is what its codes stand for, dense. Codes of a checkpoint are kept where those
operators have a place for them.

A projection may have room for adapters, of which each row names one or none.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.models.description import Activation
from pagoda_engine.models.held_codes import held_codes
from pagoda_kernels import ClampedSwiglu, clamped_swiglu, gelu_mul, silu_mul
from pagoda_kernels.lora.slots import DenseLora, LoraSlots
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.packed_lora import PackedLora
from pagoda_kernels.native.quantised_weight import Bits, quantise


class Linear:
    """One projection. Owns its weight, packed or not, and the slots of its adapters."""

    __slots__ = ("_bias", "_lora", "_weight", "packed")

    def __init__(
        self,
        weight: torch.Tensor | CodedWeight,
        bias: torch.Tensor | None = None,
        bits: Bits | None = None,
        *,
        activation: Activation | None = None,
    ) -> None:
        """Take over a weight.

        Args:
            weight: ``[N, K]`` on the engine's device and in its dtype, or as a checkpoint's codes.
            bias: ``[N]`` or None.
            bits: quantise it; None: as it is.
            activation: of the result, if it is packed; see `ActivatedLinear`.
        """
        self.packed: PackedLinear | None = None
        self._weight: torch.Tensor | None = None
        self._lora: DenseLora | None = None
        self._bias = bias
        if isinstance(weight, CodedWeight):
            coded = held_codes(weight)
            if coded is not None:
                self.packed = PackedLinear(coded, bias, dtype=weight.dtype, activation=activation)
                return
            weight = weight.dequantised()
        weight, bits = holdable(weight, bits)
        if packed_linear.can_pack(weight, bits):
            self.packed = PackedLinear(weight, bias, bits=bits, activation=activation)
        else:
            self._weight = weight

    def open_slots(self, num_slots: int, max_rank: int, part_rows: Sequence[int]) -> LoraSlots:
        """Make room for adapters; see `DenseLora`."""
        if self.packed is not None:
            return _open_packed(self.packed, num_slots, max_rank, part_rows)
        assert self._weight is not None, "one of the two is there"
        self._lora = DenseLora(
            num_slots,
            max_rank,
            part_rows,
            self._weight.shape[1],
            dtype=self._weight.dtype,
            device=self._weight.device,
        )
        return self._lora

    def __call__(self, x: torch.Tensor, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``.

        Args:
            x: rows.
            adapters: ``[M]`` int32 slot of each row, -1 for none; None: no row has an adapter.
        """
        if self.packed is not None:
            return self.packed(x, adapters)
        assert self._weight is not None, "one of the two is there"
        y = F.linear(x, self._weight, self._bias)
        if adapters is not None and self._lora is not None:
            self._lora.add(y, x, adapters)
        return y


class GatedLinear:
    """``activation(gate) * up`` of two projections with one input, or `ClampedSwiglu` of them.

    Owns their weights.
    """

    __slots__ = ("_activation", "_joined", "packed")

    def __init__(
        self,
        weight: torch.Tensor | CodedWeight,
        bias: torch.Tensor | None = None,
        activation: Activation | ClampedSwiglu = "silu",
        bits: Bits | None = None,
    ) -> None:
        """Take over both weights.

        Args:
            weight: ``[2 * N, K]``, rows of gate, then up; as `Linear`'s.
            bias: ``[2 * N]`` or None.
            activation: of the gate, or what becomes of both.
            bits: quantise them; None: as they are.
        """
        self.packed: PackedLinear | None = None
        self._joined: Linear | None = None
        self._activation = activation
        if isinstance(weight, CodedWeight):
            coded = held_codes(weight)
            if coded is not None:
                self.packed = PackedLinear(
                    coded, bias, is_gated=True, gate=activation, dtype=weight.dtype
                )
                return
            weight = weight.dequantised()
        weight, bits = holdable(weight, bits)
        if packed_linear.can_pack(weight, bits):
            self.packed = PackedLinear(weight, bias, is_gated=True, gate=activation, bits=bits)
        else:
            self._joined = Linear(weight, bias, bits)

    def open_slots(self, num_slots: int, max_rank: int, part_rows: Sequence[int]) -> LoraSlots:
        """Make room for adapters; see `DenseLora`."""
        if self.packed is not None:
            return _open_packed(self.packed, num_slots, max_rank, part_rows)
        assert self._joined is not None, "one of the two is there"
        return self._joined.open_slots(num_slots, max_rank, part_rows)

    def __call__(self, x: torch.Tensor, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``; arguments as `Linear`'s."""
        if self.packed is not None:
            return self.packed(x, adapters)
        assert self._joined is not None, "one of the two is there"
        gate_up = self._joined(x, adapters)
        if self._activation == "silu":
            return silu_mul(gate_up)
        if isinstance(self._activation, ClampedSwiglu):
            return clamped_swiglu(gate_up, self._activation)
        return gelu_mul(gate_up, approximate=_APPROXIMATIONS[self._activation])


class ActivatedLinear:
    """``activation(x @ weight.T + bias)``. Owns its weight."""

    __slots__ = ("_activation", "_linear")

    def __init__(
        self,
        weight: torch.Tensor | CodedWeight,
        bias: torch.Tensor | None,
        activation: Activation,
        bits: Bits | None = None,
    ) -> None:
        """Take over a weight; arguments as `Linear`'s."""
        self._linear = Linear(weight, bias, bits, activation=activation)
        self._activation = activation

    @property
    def packed(self) -> PackedLinear | None:
        """The projection with its activation, as native operators take it; None: see `Linear`."""
        return self._linear.packed

    def open_slots(self, num_slots: int, max_rank: int, part_rows: Sequence[int]) -> LoraSlots:
        """Make room for adapters; see `DenseLora`."""
        return self._linear.open_slots(num_slots, max_rank, part_rows)

    def __call__(self, x: torch.Tensor, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``; arguments as `Linear`'s."""
        y = self._linear(x, adapters)
        if self.packed is not None:
            return y
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


def _open_packed(
    packed: PackedLinear, num_slots: int, max_rank: int, part_rows: Sequence[int]
) -> LoraSlots:
    lora = PackedLora(
        num_slots=num_slots,
        max_rank=max_rank,
        part_rows=part_rows,
        width=packed.width,
        is_gated=packed.is_gated,
        dtype=packed.dtype,
    )
    packed.take_adapters(lora)
    return lora
