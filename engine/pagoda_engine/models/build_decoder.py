"""Builds a Decoder from named tensors: the mapping from Hugging Face names to ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from pagoda_engine.models.decoder import Decoder, DecoderLayer
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.feed_forward import DenseFeedForward, Experts
from pagoda_engine.models.linear import GatedLinear, Linear
from pagoda_engine.models.quantization import NONE, Quantization
from pagoda_engine.models.rope_scaling import cos_sin_table
from pagoda_kernels.native.quantised_weight import Bits

OUTPUT_NAME = "lm_head.weight"


class WeightSource(Protocol):
    """Where the tensors of a decoder come from; each is taken at most once."""

    def take(self, parts: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> torch.Tensor:
        """Return tensors joined: the elements of one part after those of another, as `shape`.

        Contiguous, on the engine's device and in its dtype; the caller owns it.

        Args:
            parts: shape of every tensor by its name, in order.
            shape: of the whole, with as many elements as the parts together.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Source:
    """A source, and the format of the projections that are made of what it gives."""

    weights: WeightSource
    quantization: Quantization

    def take(self, parts: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> torch.Tensor:
        """See `WeightSource`."""
        return self.weights.take(parts, shape)


class _ExpertNames(NamedTuple):
    router: str
    experts: str
    gate: str
    up: str
    down: str


_EXPERT_NAMES = {
    "Qwen3MoeForCausalLM": _ExpertNames(
        "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"
    ),
    "MixtralForCausalLM": _ExpertNames(
        "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"
    ),
}


def build_decoder(
    description: DecoderDescription,
    weights: WeightSource,
    *,
    max_positions: int,
    device: torch.device,
    quantization: Quantization = NONE,
) -> Decoder:
    """Take every tensor that the description asks for."""
    source = _Source(weights, quantization)
    vocabulary = (description.vocab_size, description.hidden_size)
    hidden = (description.hidden_size,)
    embedding = source.take({"model.embed_tokens.weight": vocabulary}, vocabulary)
    layers = tuple(_build_layer(description, source, i) for i in range(description.num_layers))
    final_norm = source.take({"model.norm.weight": hidden}, hidden)
    is_tied = description.tie_word_embeddings
    # On CPU a tied tensor is held twice, plain for look-ups and packed for products: those with a
    # plain one take 1.3 to 8 times as long (V = 32000, 1 to 32 rows, fp32 and bf16).
    output = embedding if is_tied else source.take({OUTPUT_NAME: vocabulary}, vocabulary)
    cos_sin = cos_sin_table(description.rope, description.head_dim, max_positions).to(device)
    return Decoder(
        description,
        embedding=embedding,
        layers=layers,
        final_norm=final_norm,
        output=Linear(output, None, quantization.output),
        cos_sin=cos_sin,
    )


def _build_layer(description: DecoderDescription, source: _Source, index: int) -> DecoderLayer:
    prefix = f"model.layers.{index}."
    hidden, head_dim = description.hidden_size, description.head_dim
    num_q_rows, num_kv_rows = (
        n * head_dim for n in (description.num_heads, description.num_kv_heads)
    )

    def norm(name: str, size: int) -> torch.Tensor:
        return source.take({f"{prefix}{name}.weight": (size,)}, (size,))

    qkv_rows = {
        "self_attn.q_proj": num_q_rows,
        "self_attn.k_proj": num_kv_rows,
        "self_attn.v_proj": num_kv_rows,
    }
    output_rows = {"self_attn.o_proj": hidden}
    experts = description.experts
    has_experts = experts is not None and index in experts.layers
    return DecoderLayer(
        input_norm=norm("input_layernorm", hidden),
        qkv=_linear(source, prefix, qkv_rows, hidden, description.qkv_bias),
        q_norm=norm("self_attn.q_norm", head_dim) if description.qk_norm else None,
        k_norm=norm("self_attn.k_norm", head_dim) if description.qk_norm else None,
        output=_linear(source, prefix, output_rows, num_q_rows, description.output_bias),
        post_attention_norm=norm("post_attention_layernorm", hidden),
        feed_forward=(_experts if has_experts else _dense)(description, source, prefix),
        sliding_window=description.sliding_windows[index],
    )


def _dense(description: DecoderDescription, source: _Source, prefix: str) -> DenseFeedForward:
    hidden, inner = description.hidden_size, description.intermediate_size
    gate_up_rows = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    has_bias = description.mlp_bias
    return DenseFeedForward(
        gate_up=GatedLinear(*_weights(source, prefix, gate_up_rows, hidden, has_bias)),
        down=_linear(source, prefix, {"mlp.down_proj": hidden}, inner, has_bias),
    )


def _experts(description: DecoderDescription, source: _Source, prefix: str) -> Experts:
    experts = description.experts
    assert experts is not None
    names = _EXPERT_NAMES[description.architecture]
    hidden, inner = description.hidden_size, experts.intermediate_size
    router = experts.num_experts, hidden
    each = [f"{prefix}{names.experts}.{expert}" for expert in range(experts.num_experts)]
    gate_up_names = [f"{e}.{name}.weight" for e in each for name in (names.gate, names.up)]
    down_names = [f"{e}.{names.down}.weight" for e in each]
    return Experts(
        router=Linear(source.take({f"{prefix}{names.router}.weight": router}, router)),
        gate_up=source.take(
            dict.fromkeys(gate_up_names, (inner, hidden)), (len(each), 2 * inner, hidden)
        ),
        down=source.take(dict.fromkeys(down_names, (hidden, inner)), (len(each), hidden, inner)),
        num_experts_per_tok=experts.num_experts_per_tok,
        norm_topk_prob=experts.norm_topk_prob,
        bits=source.quantization.projections,
    )


def _linear(
    source: _Source, prefix: str, rows: Mapping[str, int], num_columns: int, has_bias: bool
) -> Linear:
    """One projection with the rows of several, e.g. of Q, K and V."""
    return Linear(*_weights(source, prefix, rows, num_columns, has_bias))


def _weights(
    source: _Source, prefix: str, rows: Mapping[str, int], num_columns: int, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None, Bits | None]:
    """The joined weight of several projections, the joined bias if they have some, and the bits."""
    bits = source.quantization.projections
    num_rows = sum(rows.values())
    weights = {f"{prefix}{name}.weight": (n, num_columns) for name, n in rows.items()}
    weight = source.take(weights, (num_rows, num_columns))
    if not has_bias:
        return weight, None, bits
    biases = {f"{prefix}{name}.bias": (n,) for name, n in rows.items()}
    return weight, source.take(biases, (num_rows,)), bits
