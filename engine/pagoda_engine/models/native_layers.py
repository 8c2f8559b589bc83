"""The layers of a decoder as one native call, for the recipes that it implements.

Knows what the native forward has. Knows nothing of how it computes.
"""

import logging
from collections.abc import Sequence

import torch

from pagoda_engine.models.attention import Attention
from pagoda_engine.models.decoder_layer import DecoderLayer
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.embedding import Embedding
from pagoda_engine.models.latent_attention import LatentAttention
from pagoda_engine.models.norm import Norm, RmsNorm
from pagoda_kernels.native.decoder_layers import DecoderLayers
from pagoda_kernels.native.layer_weights import LayerWeights, PackedAttention
from pagoda_kernels.native.packed_latents import LatentsShape, PackedLatents, can_pack_latents

logger = logging.getLogger(__name__)


def native_layers(
    description: DecoderDescription,
    layers: Sequence[DecoderLayer],
    embedding: Embedding,
    final_norm: Norm,
    embedding_multiplier: float,
) -> DecoderLayers | None:
    """Return all layers as one call, if every projection is packed for it and it has all parts.

    `embedding_multiplier` is rounded as the embeddings are.
    Of parts that it has not the log tells once; of a missing native library `native_library` does.
    """
    if any(layer.attention.linears[0].packed is None for layer in layers):
        return None
    missing = missing_parts(description)
    if missing:
        logger.info(
            "%s is computed layer by layer: the native forward has no %s",
            description.architecture,
            ", no ".join(missing),
        )
        return None
    weights = [_weights(layer) for layer in layers]
    packed = [layer for layer in weights if layer is not None]
    if len(packed) < len(weights) or not isinstance(final_norm, RmsNorm):
        return None
    latent = description.latent
    native = DecoderLayers(
        packed,
        embedding=embedding.weight,
        final_norm=final_norm.weight,
        num_heads=description.num_heads,
        num_kv_heads=description.num_kv_heads if latent is None else 1,
        head_dim=description.head_dim if latent is None else latent.width,
        scale=description.scale,
        eps=description.norm_eps,
        embedding_multiplier=embedding_multiplier,
        residual_multiplier=description.residual_multiplier,
    )
    return native if native.fits else None


def missing_parts(description: DecoderDescription) -> list[str]:
    """Return, by name, what a description asks for and the native forward has not."""
    names = description.names
    is_missing = {
        "layer norm": description.norm == "layer",
        "norm with 1 + weight": description.norm == "rms_unit_offset",
        "parallel block": description.is_parallel,
        "embedding of positions": bool(names.positions),
        "norm of embeddings": bool(names.embedding_norm),
        "QK norm of each head": description.qk_norm == "each_head",
        "ALiBi": bool(description.alibi_bias_max),
        "soft cap of scores": description.attention_soft_cap is not None,
        "feed-forward without a gate": not description.is_gated,
        f"{description.activation} gate": description.activation != "silu",
    }
    return [name for name, is_asked in is_missing.items() if is_asked]


def _weights(layer: DecoderLayer) -> LayerWeights | None:
    """Return what the call takes, or None if a projection is not packed."""
    attention = layer.attention
    packed = _latents(attention) if isinstance(attention, LatentAttention) else _heads(attention)
    output, feed_forward = attention.output.packed, layer.feed_forward.packed
    if packed is None or output is None or feed_forward is None:
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
    )


def _weight(norm: Norm | None) -> torch.Tensor | None:
    if norm is None:
        return None
    assert isinstance(norm, RmsNorm), "`missing_parts` was asked"
    assert not norm.unit_offset
    return norm.weight


def _heads(attention: Attention) -> PackedAttention | None:
    if attention.qkv.packed is None:
        return None
    norm = attention.qk_norm
    return PackedAttention(
        qkv=attention.qkv.packed,
        q_norm=None if norm is None else _weight(norm.q),
        k_norm=None if norm is None else _weight(norm.k),
        window=attention.window,
        sinks=None if attention.sinks is None else attention.sinks.float().contiguous(),
        is_qk_norm_joined=norm is not None and norm.is_joined,
        clip=attention.clip,
        k_scale=None if attention.kv_scales is None else attention.kv_scales.k,
        v_scale=None if attention.kv_scales is None else attention.kv_scales.v,
    )


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
