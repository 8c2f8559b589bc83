"""The layers of a decoder as one native call, for the recipes that it implements.

Knows what the native forward has. Knows nothing of how it computes.
"""

import logging
from collections.abc import Sequence

from pagoda_engine.models.attention import Attention
from pagoda_engine.models.decoder_layer import DecoderLayer
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.embedding import Embedding
from pagoda_engine.models.feed_forward import DenseFeedForward
from pagoda_engine.models.linear import GatedLinear
from pagoda_engine.models.norm import Norm, RmsNorm
from pagoda_kernels.native.decoder_layers import DecoderLayers, LayerWeights

logger = logging.getLogger(__name__)


def native_layers(
    description: DecoderDescription,
    layers: Sequence[DecoderLayer],
    embedding: Embedding,
    final_norm: Norm,
) -> DecoderLayers | None:
    """Return all layers as one call, if every projection is packed for it and it has all parts.

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
    cos_sin = layers[0].attention.cos_sin
    if len(packed) < len(weights) or cos_sin is None or not isinstance(final_norm, RmsNorm):
        return None
    native = DecoderLayers(
        packed,
        embedding=embedding.weight,
        final_norm=final_norm.weight,
        cos_sin=cos_sin,
        num_heads=description.num_heads,
        num_kv_heads=description.num_kv_heads,
        head_dim=description.head_dim,
        eps=description.norm_eps,
    )
    return native if native.fits else None


def missing_parts(description: DecoderDescription) -> list[str]:
    """Return, by name, what a description asks for and the native forward has not."""
    names = description.names
    multipliers = (
        description.embedding_multiplier,
        description.residual_multiplier,
        description.scale * description.head_dim**0.5,
    )
    is_missing = {
        "latent attention": description.latent is not None,
        "mixture of experts": description.experts is not None,
        "layer norm": description.norm == "layer",
        "norm with 1 + weight": description.norm == "rms_unit_offset",
        "parallel block": description.is_parallel,
        "norm after attention or feed-forward": bool(
            names.attention_out_norm or names.feed_forward_out_norm
        ),
        "block without norms before": not (names.attention_in_norm and names.feed_forward_in_norm),
        "embedding of positions": bool(names.positions),
        "norm of embeddings": bool(names.embedding_norm),
        "layers without rotation": None in description.ropes,
        "rotations that differ by layer": len(set(description.ropes)) > 1,
        "QK norm over all heads, or of each": description.qk_norm not in ("none", "head"),
        "bound of Q, K and V": description.qkv_clip is not None,
        "ALiBi": bool(description.alibi_bias_max),
        "attention sinks": bool(names.sinks),
        "soft cap of scores": description.attention_soft_cap is not None,
        "feed-forward without a gate": not description.is_gated,
        f"{description.activation} gate": description.activation != "silu",
        "multipliers": any(abs(multiplier - 1) > 1e-9 for multiplier in multipliers),
    }
    return [name for name, is_asked in is_missing.items() if is_asked]


def _weights(layer: DecoderLayer) -> LayerWeights | None:
    """Return what the call takes, or None if a projection is not packed."""
    attention, dense = layer.attention, layer.feed_forward
    assert isinstance(attention, Attention), "`missing_parts` was asked"
    assert isinstance(dense, DenseFeedForward)
    assert isinstance(dense.up, GatedLinear)
    assert isinstance(layer.attention_in_norm, RmsNorm)
    assert isinstance(layer.feed_forward_in_norm, RmsNorm)
    qkv, output = attention.qkv.packed, attention.output.packed
    gate_up, down = dense.up.packed, dense.down.packed
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    q_norm, k_norm = (attention.qk_norm and attention.qk_norm.weights) or (None, None)
    return LayerWeights(
        input_norm=layer.attention_in_norm.weight,
        post_attention_norm=layer.feed_forward_in_norm.weight,
        q_norm=q_norm,
        k_norm=k_norm,
        qkv=qkv,
        output=output,
        gate_up=gate_up,
        down=down,
        window=attention.window,
        k_scale=None if attention.kv_scales is None else attention.kv_scales.k,
        v_scale=None if attention.kv_scales is None else attention.kv_scales.v,
    )
