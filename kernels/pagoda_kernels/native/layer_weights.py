"""Weights of one layer, as its native forward takes them."""

import ctypes
from dataclasses import dataclass
from typing import Literal

import torch

from pagoda_kernels.native.packed_experts import PackedExperts, PackedFeedForward
from pagoda_kernels.native.packed_latents import PackedLatents
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.structures import AttentionShape, Layer

QkNormPlace = Literal["head", "joined", "each_head"]
"""Norms of Q and K: over a head, with one weight for all; over all heads at once; over a head, each
with a layer norm of its own."""
_PLACES: dict[QkNormPlace, int] = {"head": 0, "joined": 1, "each_head": 2}  # as in rows.h


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Grouped-query attention but for its output projection.

    Attributes:
        qkv: rows of Q, then K, then V; of Q alone, where another layer's K and V are read.
        q_norm: ``[D]``, joined ``[H * D]``, of each head ``[H, 2, D]`` as `LayerWeights` has layer
            norms; None: there is none.
        k_norm: ``[D]``, ``[HK * D]`` or ``[HK, 2, D]``; None: there is none.
        window: keys a query sees, itself included; None for all.
        sinks: ``[H]`` fp32, contiguous, see `paged_attention`; None: there are none.
        qk_norm_place: what the norms are over.
        clip: bound of absolute values of Q, K and V; None: there is none.
        k_scale: ``[HK]`` fp32 contiguous, of a cache in one byte, see `write_qkv`; None: there is
            none.
        v_scale: as `k_scale`.
        v_norm: ``[D]``, RMS norm of each head of V; None: there is none.
        num_kv_heads: HK, where layers differ; 0: the decoder's.
        head_dim: D, as `num_kv_heads`.
    """

    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    window: int | None
    sinks: torch.Tensor | None = None
    qk_norm_place: QkNormPlace = "head"
    clip: float | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    v_norm: torch.Tensor | None = None
    num_kv_heads: int = 0
    head_dim: int = 0

    @property
    def adaptable(self) -> tuple[PackedLinear, ...]:
        """Projections that may have adapters."""
        return (self.qkv,)


@dataclass(frozen=True, slots=True)
class PackedLayerInput:
    """What a layer adds to the residual x at its end: ``norm(projection(gate(x) * input))``.

    Attributes:
        gate: ``[W, hidden]``, activated.
        projection: ``[hidden, W]``.
        norm: ``[hidden]``, as those of `LayerWeights`.
    """

    gate: PackedLinear
    projection: PackedLinear
    norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedBeside:
    """A dense part, and experts beside it that read the same residual; their sum is added.

    Attributes:
        dense: reads what `LayerWeights.post_attention_norm` returns.
        dense_out_norm: ``[hidden]``, of what it adds, as those of `LayerWeights`; so are the next.
        router_norm: of the residual, for the router; always RMS.
        experts_in_norm: of the residual, for the experts.
        experts: without a shared one.
        experts_out_norm: of what they add.
    """

    dense: PackedFeedForward
    dense_out_norm: torch.Tensor
    router_norm: torch.Tensor
    experts_in_norm: torch.Tensor
    experts: PackedExperts
    experts_out_norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer; norms dense, in the dtype of the projections.

    Of a layer norm there is ``[2, hidden]`` where others are ``[hidden]``: weights, then biases.

    Attributes:
        input_norm: ``[hidden]``; None: the residual is read as it is.
        attention: of K and V, or of latents.
        output: of attention.
        post_attention_norm: before the feed-forward part, as `input_norm`; None in a parallel
            block: it reads what attention reads.
        cos_sin: ``[max_positions, R]`` fp32, contiguous, cosines, then sines; None: nothing turns.
        feed_forward: dense, or experts, or both.
        attention_out_norm: ``[hidden]``, of what attention adds to the residual; None: it is added
            as it is.
        feed_forward_out_norm: as `attention_out_norm`.
        layer_input: what it makes of what it is told of a token; None: it is told nothing.
        scalar: of the residual after the layer; None: it goes on as it is.
    """

    input_norm: torch.Tensor | None
    attention: PackedAttention | PackedLatents
    output: PackedLinear
    post_attention_norm: torch.Tensor | None
    cos_sin: torch.Tensor | None
    feed_forward: PackedFeedForward | PackedExperts | PackedBeside
    attention_out_norm: torch.Tensor | None = None
    feed_forward_out_norm: torch.Tensor | None = None
    layer_input: PackedLayerInput | None = None
    scalar: float | None = None

    @property
    def adaptable(self) -> tuple[PackedLinear, ...]:
        """Projections that may have adapters."""
        last = self.feed_forward
        if isinstance(last, PackedBeside):
            last = last.dense
        attention = *self.attention.adaptable, self.output
        if isinstance(last, PackedExperts):
            return attention
        return *attention, last.gate_up, last.down

    @property
    def has_kv_scales(self) -> bool:
        """Whether its KV may lie in one byte."""
        attention = self.attention
        if isinstance(attention, PackedLatents):
            return False
        return attention.k_scale is not None and attention.v_scale is not None

    def structure(self, shape: AttentionShape) -> Layer:
        """Return what the C sources take; it keeps nothing alive, nor the shape of its heads."""
        layer = Layer(
            input_norm=address_of(self.input_norm),
            post_attention_norm=address_of(self.post_attention_norm),
            attention_out_norm=address_of(self.attention_out_norm),
            feed_forward_out_norm=address_of(self.feed_forward_out_norm),
            output=self.output.address,
            cos_sin=address_of(self.cos_sin),
            rotary_dim=0 if self.cos_sin is None else self.cos_sin.shape[1],
            scalar=1.0 if self.scalar is None else self.scalar,
            shape=ctypes.pointer(shape),
        )
        attention, feed_forward = self.attention, self.feed_forward
        if isinstance(attention, PackedLatents):
            layer.latents = attention.address
        else:
            layer.qkv = attention.qkv.address
            layer.q_norm = address_of(attention.q_norm)
            layer.k_norm = address_of(attention.k_norm)
            layer.window = attention.window or 0
            layer.qk_norm_place = _PLACES[attention.qk_norm_place]
            layer.qkv_clip = attention.clip or 0.0
            layer.sinks = address_of(attention.sinks)
            layer.k_scale = address_of(attention.k_scale)
            layer.v_scale = address_of(attention.v_scale)
            layer.v_norm = address_of(attention.v_norm)
            layer.is_q_alone = attention.qkv.num_outputs == shape.num_heads * shape.head_dim
        if isinstance(feed_forward, PackedBeside):
            layer.experts = feed_forward.experts.address
            layer.dense_out_norm = address_of(feed_forward.dense_out_norm)
            layer.router_norm = address_of(feed_forward.router_norm)
            layer.experts_in_norm = address_of(feed_forward.experts_in_norm)
            layer.experts_out_norm = address_of(feed_forward.experts_out_norm)
            feed_forward = feed_forward.dense
        if isinstance(feed_forward, PackedExperts):
            layer.experts = feed_forward.address
        else:
            layer.gate_up = feed_forward.gate_up.address
            layer.down = feed_forward.down.address
        if self.layer_input is not None:
            layer.input_gate = self.layer_input.gate.address
            layer.input_projection = self.layer_input.projection.address
            layer.input_out_norm = address_of(self.layer_input.norm)
        return layer


def address_of(tensor: torch.Tensor | None) -> int | None:
    """Return where a tensor's elements are; None of None."""
    return None if tensor is None else tensor.data_ptr()
