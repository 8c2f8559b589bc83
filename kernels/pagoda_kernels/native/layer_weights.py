"""Weights of one layer, as its native forward takes them."""

from dataclasses import dataclass

import torch

from pagoda_kernels.native.packed_experts import PackedExperts, PackedFeedForward
from pagoda_kernels.native.packed_latents import PackedLatents
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.structures import Layer


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Grouped-query attention but for its output projection.

    Attributes:
        qkv: rows of Q, then K, then V.
        q_norm: ``[D]``, or None without QK norm.
        k_norm: as `q_norm`.
        window: keys a query sees, itself included; None for all.
        sinks: ``[H]`` fp32, contiguous, see `paged_attention`; None: there are none.
    """

    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    window: int | None
    sinks: torch.Tensor | None = None

    @property
    def adaptable(self) -> tuple[PackedLinear, ...]:
        """Projections that may have adapters."""
        return (self.qkv,)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer; norms dense, in the dtype of the projections.

    Attributes:
        input_norm: ``[hidden]``.
        attention: of K and V, or of latents.
        output: of attention.
        post_attention_norm: ``[hidden]``.
        feed_forward: dense, or experts.
    """

    input_norm: torch.Tensor
    attention: PackedAttention | PackedLatents
    output: PackedLinear
    post_attention_norm: torch.Tensor
    feed_forward: PackedFeedForward | PackedExperts

    @property
    def adaptable(self) -> tuple[PackedLinear, ...]:
        """Projections that may have adapters."""
        last = self.feed_forward
        dense = () if isinstance(last, PackedExperts) else (last.gate_up, last.down)
        return *self.attention.adaptable, self.output, *dense

    def structure(self) -> Layer:
        """Return what the C sources take; it keeps nothing alive."""
        layer = Layer(
            input_norm=self.input_norm.data_ptr(),
            post_attention_norm=self.post_attention_norm.data_ptr(),
            output=self.output.address,
        )
        attention, feed_forward = self.attention, self.feed_forward
        if isinstance(attention, PackedLatents):
            layer.latents = attention.address
        else:
            layer.qkv = attention.qkv.address
            layer.q_norm = address_of(attention.q_norm)
            layer.k_norm = address_of(attention.k_norm)
            layer.window = attention.window or 0
            layer.sinks = address_of(attention.sinks)
        if isinstance(feed_forward, PackedExperts):
            layer.experts = feed_forward.address
        else:
            layer.gate_up = feed_forward.gate_up.address
            layer.down = feed_forward.down.address
        return layer


def address_of(tensor: torch.Tensor | None) -> int | None:
    """Return where a tensor's elements are; None of None."""
    return None if tensor is None else tensor.data_ptr()
