"""Builds a Decoder from named tensors, as its description says.

Knows which tensors a layer's parts have. Knows nothing of families or files.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.alibi import alibi_slopes
from pagoda_engine.models.attention import Attention, QkNorm
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.decoder_layer import DecoderLayer
from pagoda_engine.models.description import DecoderDescription, LatentDescription
from pagoda_engine.models.embeddings.embedding import Embedding
from pagoda_engine.models.embeddings.layer_inputs import LayerInput, LayerInputs
from pagoda_engine.models.feed_forward import (
    DenseAndExperts,
    DenseFeedForward,
    Experts,
    Router,
    SharedExpert,
)
from pagoda_engine.models.latent_attention import LatentAttention
from pagoda_engine.models.linear import ActivatedLinear, GatedLinear, Linear
from pagoda_engine.models.norm import LayerNorm, RmsNorm
from pagoda_engine.models.projections import (
    down_projection,
    latent_projection,
    output_projection,
    q_up_projection,
    qkv_projection,
    up_projection,
)
from pagoda_engine.models.quantization import NONE, Quantization
from pagoda_engine.models.rope_scaling import RopeDescription, cos_sin_table
from pagoda_engine.models.weights.experts import expert_down, expert_gate_up
from pagoda_engine.models.weights.latents import kv_up_parts
from pagoda_engine.models.weights.source import WeightSource, turning_first
from pagoda_engine.models.weights.taker import WeightTaker

CosSin = dict[tuple[RopeDescription, int], torch.Tensor]
"""By rotation and dims of a head."""


def build_decoder(
    description: DecoderDescription,
    source: WeightSource,
    *,
    max_positions: int,
    device: torch.device,
    quantization: Quantization = NONE,
    kv_dtype: torch.dtype | None = None,
) -> Decoder:
    """Take every tensor that the description asks for.

    Args:
        description: of the decoder.
        source: of its tensors.
        max_positions: longest sequence.
        device: of the tensors.
        quantization: of projections.
        kv_dtype: of the cache; one of one byte has scales, see `KvScales`. None: as activations.
    """
    names = description.names
    taker = WeightTaker(description, source, device, quantization.projections, kv_dtype)
    embedding = taker.table(names.embedding, description.vocab_size)
    positions = None
    if names.positions:
        positions = taker.table(names.positions, description.max_position_embeddings)
    embedding_norm = taker.optional_norm(names.embedding_norm)
    cos_sin: CosSin = {}
    for index, rope in enumerate(description.ropes):
        width = description.rope_width(index)
        if rope is not None and (rope, width) not in cos_sin:
            cos_sin[rope, width] = cos_sin_table(rope, width, max_positions).to(device)
    slopes = None
    if description.alibi_bias_max:
        slopes = alibi_slopes(description.num_heads, description.alibi_bias_max).to(device)
    layers: list[DecoderLayer] = []
    for index in range(description.num_layers):
        layers.append(_layer(taker, index, cos_sin, slopes, layers))
    layer_inputs = _layer_inputs(taker)
    final_norm = taker.norm(names.final_norm)
    is_tied = description.tie_word_embeddings
    # Tied or not, on CPU products are with a packed one: with a plain one they take 1.3 to 8 times
    # as long (V = 32000, 1 to 32 rows, fp32 and bf16).
    table = embedding if is_tied else taker.table(names.output, description.vocab_size)
    output = Linear(table, None, quantization.output)
    held_once = output.packed if is_tied and quantization.output is None else None
    return Decoder(
        description,
        embedding=Embedding(embedding if held_once is None else held_once),
        positions=positions,
        embedding_norm=embedding_norm,
        layer_inputs=layer_inputs,
        layers=tuple(layers),
        final_norm=final_norm,
        output=output,
        max_positions=max_positions,
    )


def _layer(
    taker: WeightTaker,
    index: int,
    cos_sin: CosSin,
    slopes: torch.Tensor | None,
    earlier: Sequence[DecoderLayer],
) -> DecoderLayer:
    description = taker.description
    names, experts = description.names, description.experts
    prefix = names.layer.format(index)
    attention_in_norm = taker.optional_norm(names.attention_in_norm, prefix)
    attention: Attention | LatentAttention
    if description.latent is None:
        attention = _attention(taker, index, cos_sin, slopes)
        if not description.has_kv(index):  # codes of a cache in one byte are the other layer's
            source = earlier[description.kv_sources[index]].attention
            assert isinstance(source, Attention), "no layer has latents, or all have"
            attention = replace(attention, kv_scales=source.kv_scales)
    else:
        attention = _latent_attention(taker, index, description.latent, cos_sin)
    feed_forward: DenseFeedForward | Experts | DenseAndExperts
    if experts is None or index not in experts.layers:
        feed_forward = _dense(taker, index)
    elif experts.is_beside_dense:
        feed_forward = _dense_and_experts(taker, index)
    else:
        feed_forward = _experts(taker, prefix)
    return DecoderLayer(
        attention_in_norm=attention_in_norm,
        attention=attention,
        attention_out_norm=taker.optional_norm(names.attention_out_norm, prefix),
        feed_forward_in_norm=taker.optional_norm(names.feed_forward_in_norm, prefix),
        feed_forward=feed_forward,
        feed_forward_out_norm=taker.optional_norm(names.feed_forward_out_norm, prefix),
        is_parallel=description.is_parallel,
        multiplier=description.residual_multiplier,
        layer_input=_layer_input(taker, prefix),
        scalar=taker.vector(prefix + names.layer_scalar, 1) if names.layer_scalar else None,
    )


def _layer_inputs(taker: WeightTaker) -> LayerInputs | None:
    description, names = taker.description, taker.description.names
    shape, hidden = description.layer_inputs, description.hidden_size
    if shape is None:
        return None
    width = description.num_layers * shape.width
    table = (shape.vocab_size, width)
    norm = taker.vector(f"{names.layer_inputs_norm}.weight", shape.width)
    projection = taker.weights([names.layer_inputs], [width], hidden, has_bias=False)
    return LayerInputs(
        rows=taker.source.take([Part(f"{names.layer_input_rows}.weight", table)], table),
        projection=Linear(*projection, taker.bits),
        norm=RmsNorm(norm, description.norm_eps),
        width=shape.width,
        hidden_size=hidden,
    )


def _layer_input(taker: WeightTaker, prefix: str) -> LayerInput | None:
    description, names = taker.description, taker.description.names
    shape, hidden = description.layer_inputs, description.hidden_size
    if shape is None:
        return None
    gate = taker.weights([prefix + names.layer_input_gate], [shape.width], hidden, has_bias=False)
    back = taker.weights(
        [prefix + names.layer_input_projection], [hidden], shape.width, has_bias=False
    )
    return LayerInput(
        gate=ActivatedLinear(*gate, description.activation, taker.bits),
        projection=Linear(*back, taker.bits),
        norm=taker.norm(names.layer_input_norm, prefix),
    )


def _attention(
    taker: WeightTaker, index: int, cos_sin: CosSin, slopes: torch.Tensor | None
) -> Attention:
    description = taker.description
    prefix, rope = description.names.layer.format(index), description.ropes[index]
    heads, has_kv = description.heads(index), description.has_kv(index)
    qkv = taker.projection(qkv_projection(description, index), has_bias=description.qkv_bias)
    output = taker.projection(
        output_projection(description, index), has_bias=description.output_bias
    )
    sinks = None
    if description.names.sinks:
        shape = (description.num_heads,)
        sinks = taker.source.take([Part(prefix + description.names.sinks, shape)], shape)
    return Attention(
        qkv=Linear(*qkv, taker.bits),
        qk_norm=_qk_norm(taker, index),
        output=Linear(*output, taker.bits),
        cos_sin=None if rope is None else cos_sin[rope, heads.head_dim],
        num_heads=description.num_heads,
        scale=description.scale,
        window=description.sliding_windows[index],
        soft_cap=description.attention_soft_cap,
        alibi_slopes=slopes,
        sinks=sinks,
        clip=description.qkv_clip,
        eps=description.norm_eps,
        kv_scales=taker.kv_scales(prefix, heads.num_kv_heads) if has_kv else None,
        has_kv=has_kv,
        is_v_normed=description.is_v_normed,
    )


def _latent_attention(
    taker: WeightTaker, index: int, latent: LatentDescription, cos_sin: CosSin
) -> LatentAttention:
    description, names = taker.description, taker.description.names
    prefix, rope = names.layer.format(index), description.ropes[index]
    assert rope is not None, "a part of K turns"
    table = cos_sin[rope, latent.rope_dim]

    def norm(name: str, width: int) -> RmsNorm:
        weight = taker.source.take([Part(f"{prefix}{name}.weight", (width,))], (width,))
        return RmsNorm(weight, latent.norm_eps)

    q_norm, q_up = None, None
    down = taker.projection(latent_projection(description, index), has_bias=False)
    if latent.q_rank:
        q_norm = norm(names.q_latent_norm, latent.q_rank)
        up = taker.projection(q_up_projection(description, index), has_bias=False)
        q_up = Linear(*up, taker.bits)
    output = taker.projection(output_projection(description, index), has_bias=False)
    return LatentAttention(
        shape=latent,
        down=Linear(*down, taker.bits),
        q_norm=q_norm,
        q_up=q_up,
        kv_norm=norm(names.kv_latent_norm, latent.kv_rank),
        # Never quantised: its transpose is multiplied as often as itself.
        kv_up=taker.source.take(
            kv_up_parts(names, prefix, latent, description.num_heads),
            (description.num_heads, latent.nope_dim + latent.value_dim, latent.kv_rank),
        ),
        output=Linear(*output, taker.bits),
        cos_sin=table,
        is_interleaved=rope.is_interleaved,
        scale=description.scale,
    )


def _qk_norm(taker: WeightTaker, index: int) -> QkNorm | None:
    """Take the norms of Q and K, in the order of their projections' rows."""
    description = taker.description
    prefix, rope = description.names.layer.format(index), description.ropes[index]
    heads = description.heads(index)
    kind, eps, head_dim = description.qk_norm, description.norm_eps, heads.head_dim
    if kind == "none":
        return None

    def norm(name: str, num_heads: int) -> RmsNorm | LayerNorm:
        count = 1 if kind == "head" else num_heads
        arrange = turning_first(rope, count, head_dim)
        wide, stored = (count * head_dim,), (count, head_dim)
        if kind != "each_head":
            weight = taker.source.take([Part(f"{prefix}{name}.weight", wide, arrange)], wide)
            return RmsNorm(weight, eps, description.norm == "rms_unit_offset")

        def flat(tensor: torch.Tensor) -> torch.Tensor:
            rows = tensor.flatten()
            return rows if arrange is None else arrange(rows)

        weight = taker.source.take([Part(f"{prefix}{name}.weight", stored, flat)], stored)
        return LayerNorm(weight, None, eps)

    q = norm(description.names.q_norm, description.num_heads)
    has_kv = description.has_kv(index)
    return QkNorm(
        q=q,
        k=norm(description.names.k_norm, heads.num_kv_heads) if has_kv else q,
        is_joined=kind == "joined",
    )


def _dense(taker: WeightTaker, index: int) -> DenseFeedForward:
    description = taker.description
    has_bias, activation = description.mlp_bias, description.activation
    weights = taker.projection(up_projection(description, index), has_bias=has_bias)
    up: GatedLinear | ActivatedLinear
    if description.is_gated:
        up = GatedLinear(*weights, activation, taker.bits)
    else:
        up = ActivatedLinear(*weights, activation, taker.bits)
    down = taker.projection(down_projection(description, index), has_bias=has_bias)
    return DenseFeedForward(up=up, down=Linear(*down, taker.bits))


def _dense_and_experts(taker: WeightTaker, index: int) -> DenseAndExperts:
    description, names = taker.description, taker.description.names
    prefix, hidden = names.layer.format(index), description.hidden_size
    router_norm = taker.vector(prefix + names.router_norm, hidden) * hidden**-0.5

    def norm(name: str) -> RmsNorm:
        weight = taker.vector(f"{prefix}{name}.weight", hidden)
        return RmsNorm(weight, description.norm_eps, description.norm == "rms_unit_offset")

    return DenseAndExperts(
        dense=_dense(taker, index),
        dense_out_norm=norm(names.dense_out_norm),
        router_norm=RmsNorm(router_norm, description.norm_eps),
        experts_in_norm=norm(names.experts_in_norm),
        experts=_experts(taker, prefix),
        experts_out_norm=norm(names.experts_out_norm),
    )


def _experts(taker: WeightTaker, prefix: str) -> Experts:
    description = taker.description
    names, experts = description.names, description.experts
    assert experts is not None, "the layer has some"
    hidden, count = description.hidden_size, experts.num_experts
    router = taker.weights(
        [prefix + names.router],
        [count],
        hidden,
        has_bias=experts.has_bias,
        dtype=torch.float32 if experts.is_router_float32 else None,
    )
    router_bias = None
    if names.router_bias:
        part = Part(prefix + names.router_bias, (count,))
        router_bias = taker.source.take([part], (count,), torch.float32)
    scales = None
    if names.expert_scales:
        scales = taker.vector(prefix + names.expert_scales, count, torch.float32)
    gate_up, gate_up_bias = expert_gate_up(taker, prefix)
    down, down_bias = expert_down(taker, prefix)
    shared = None
    if experts.shared_size:
        gate = None
        if names.shared_expert_gate:
            name = prefix + names.shared_expert_gate
            gate = Linear(taker.weights([name], [1], hidden, has_bias=False)[0])
        shared = SharedExpert(gate=gate, expert=_shared(taker, prefix, experts.shared_size))
    return Experts(
        router=Router(Linear(*router), router_bias, experts, scales),
        gate_up=gate_up,
        down=down,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
        gate=experts.gate,
        shared=shared,
        bits=taker.bits,
    )


def _shared(taker: WeightTaker, prefix: str, inner: int) -> DenseFeedForward:
    names, hidden = taker.description.names, taker.description.hidden_size
    prefix += names.shared_expert
    gate_up = [prefix + name for name in names.expert_gate_up]
    down = [prefix + names.expert_down]
    up = taker.weights(gate_up, [inner, inner], hidden, has_bias=False)
    return DenseFeedForward(
        up=GatedLinear(*up, bits=taker.bits),
        down=Linear(*taker.weights(down, [hidden], inner, has_bias=False), taker.bits),
    )
