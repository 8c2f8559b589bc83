"""The layers of a decoder as one native call.

Knows what the native forward takes. Knows nothing of how it computes.
"""

import logging
from collections.abc import Sequence
from typing import overload

import torch

from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.models.attention import Attention, QkNorm
from pagoda_engine.models.decoder_layer import DecoderLayer
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.embeddings.embedding import Embedding
from pagoda_engine.models.latent_attention import LatentAttention
from pagoda_engine.models.norm import LayerNorm, Norm, RmsNorm
from pagoda_kernels.native.decoder_layers import DecoderLayers
from pagoda_kernels.native.layer_weights import LayerWeights, PackedAttention, QkNormPlace
from pagoda_kernels.native.library import native_library
from pagoda_kernels.native.packed_latents import LatentsShape, PackedLatents, can_pack_latents
from pagoda_kernels.native.packed_linear import DTYPES

logger = logging.getLogger(__name__)


def native_layers(
    description: DecoderDescription,
    layers: Sequence[DecoderLayer],
    embedding: Embedding,
    final_norm: Norm,
    embedding_multiplier: float,
    positions: torch.Tensor | None = None,
    embedding_norm: Norm | None = None,
) -> DecoderLayers | None:
    """Return all layers as one call, if every projection is packed for it.

    `embedding_multiplier` is rounded as the embeddings are; `positions` and `embedding_norm` are a
    `Decoder`'s. Where a CPU cannot have the call, the log says why.
    """
    weights = [_weights(layer, description.heads(i)) for i, layer in enumerate(layers)]
    packed = [layer for layer in weights if layer is not None]
    if len(packed) < len(weights):
        if _weight(final_norm).device.type == "cpu":
            first = next(i for i, layer in enumerate(weights) if layer is None)
            _say_why_not(_why_not(layers[first], f"layer {first}", embedding.dtype))
        return None
    latent, attention = description.latent, layers[0].attention
    slopes = attention.alibi_slopes if isinstance(attention, Attention) else None
    native = DecoderLayers(
        packed,
        embedding=embedding.weight,
        final_norm=_weight(final_norm),
        num_heads=description.num_heads,
        num_kv_heads=description.num_kv_heads if latent is None else 1,
        head_dim=description.head_dim if latent is None else latent.width,
        scale=description.scale,
        eps=description.norm_eps,
        embedding_multiplier=embedding_multiplier,
        residual_multiplier=description.residual_multiplier,
        norm=description.norm,
        soft_cap=description.attention_soft_cap,
        is_parallel=description.is_parallel,
        position_table=positions,
        embedding_norm=_weight(embedding_norm),
        alibi_slopes=slopes,
    )
    if native.misfit:
        _say_why_not(native.misfit)
        return None
    return native


def _say_why_not(reason: str) -> None:
    logger.info(
        "layers are computed one by one by torch's operators, which is slower than all in one "
        "native call, and not the same to the bit in every batch: %s",
        reason,
    )


def _why_not(layer: DecoderLayer, name: str, dtype: torch.dtype) -> str:
    """Say why a layer's projections are not all packed."""
    if dtype not in DTYPES:
        known = " or ".join(_name(each) for each in DTYPES)
        return f"dtype is {_name(dtype)}, must be {known}"
    if native_library() is None:
        return "there is no native library for this processor (why, is said where it is sought)"
    if layer.feed_forward.packed is None:
        part = "the feed-forward part"
    else:
        part = "the output" if layer.attention.output.packed is None else "Q, K and V"
        if layer.layer_input is not None and layer.layer_input.packed is None:
            part = "the input by token"
    return f"{part} of {name}: weights have an odd number of inputs"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _weights(layer: DecoderLayer, heads: LayerHeads) -> LayerWeights | None:
    """Return what the call takes, or None if a projection is not packed."""
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        packed: PackedLatents | PackedAttention | None = _latents(attention)
    else:
        packed = _heads(attention, heads)
    output, feed_forward = attention.output.packed, layer.feed_forward.packed
    told = None if layer.layer_input is None else layer.layer_input.packed
    if packed is None or output is None or feed_forward is None:
        return None
    if layer.layer_input is not None and told is None:
        return None
    return LayerWeights(
        input_norm=_weight(layer.attention_in_norm),
        attention=packed,
        output=output,
        post_attention_norm=_weight(layer.feed_forward_in_norm),
        cos_sin=attention.cos_sin,
        feed_forward=feed_forward,
        attention_out_norm=_weight(layer.attention_out_norm),
        feed_forward_out_norm=_weight(layer.feed_forward_out_norm),
        layer_input=told,
        scalar=None if layer.scalar is None else float(layer.scalar),
    )


@overload
def _weight(norm: Norm) -> torch.Tensor: ...
@overload
def _weight(norm: None) -> None: ...
def _weight(norm: Norm | None) -> torch.Tensor | None:
    """Return a norm's weight, of a layer norm with its bias behind: see `LayerWeights`."""
    if isinstance(norm, LayerNorm):
        bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
        return torch.stack((norm.weight, bias), -2)
    assert norm is None or isinstance(norm, RmsNorm), "there are no other norms"
    return None if norm is None else norm.weight


def _heads(attention: Attention, heads: LayerHeads) -> PackedAttention | None:
    if attention.qkv.packed is None:
        return None
    norm, dtype = attention.qk_norm, attention.qkv.packed.dtype
    is_v_normed = attention.is_v_normed and attention.has_kv
    return PackedAttention(
        qkv=attention.qkv.packed,
        q_norm=None if norm is None else _weight(norm.q),
        k_norm=None if norm is None else _weight(norm.k),
        window=attention.window,
        sinks=None if attention.sinks is None else attention.sinks.float().contiguous(),
        qk_norm_place="head" if norm is None else _place(norm),
        clip=attention.clip,
        k_scale=None if attention.kv_scales is None else attention.kv_scales.k,
        v_scale=None if attention.kv_scales is None else attention.kv_scales.v,
        v_norm=torch.ones(heads.head_dim, dtype=dtype) if is_v_normed else None,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
    )


def _place(norm: QkNorm) -> QkNormPlace:
    if norm.is_joined:
        return "joined"
    return "each_head" if isinstance(norm.q, LayerNorm) else "head"


def _latents(attention: LatentAttention) -> PackedLatents | None:
    shape, q_up = attention.shape, attention.q_up
    if attention.down.packed is None or (q_up is not None and q_up.packed is None):
        return None
    if not can_pack_latents(attention.kv_up, shape.nope_dim):
        return None
    kv_norm = _weight(attention.kv_norm)
    assert kv_norm is not None, "latents have a norm"
    return PackedLatents(
        LatentsShape(shape.kv_rank, shape.nope_dim, shape.rope_dim, shape.value_dim),
        down=attention.down.packed,
        q_norm=_weight(attention.q_norm),
        q_up=None if q_up is None else q_up.packed,
        kv_norm=kv_norm,
        kv_up=attention.kv_up,
        is_interleaved=attention.is_interleaved,
        eps=shape.norm_eps,
    )
