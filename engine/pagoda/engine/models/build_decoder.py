"""Builds a Decoder from a folder's tensors: the mapping from Hugging Face names to ours."""

import torch

from pagoda.engine.models.decoder import Decoder, DecoderLayer
from pagoda.engine.models.description import DecoderDescription
from pagoda.engine.models.linear import Linear
from pagoda.engine.models.rope_scaling import cos_sin_table
from pagoda.engine.models.weights import WeightFiles

_OUTPUT = "lm_head.weight"


def build_decoder(
    description: DecoderDescription,
    files: WeightFiles,
    *,
    max_positions: int,
    device: torch.device,
) -> Decoder:
    """Take every tensor from the files.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is left over.
    """
    vocab_size, hidden_size = description.vocab_size, description.hidden_size
    embedding = files.take("model.embed_tokens.weight", (vocab_size, hidden_size))
    layers = tuple(_build_layer(description, files, i) for i in range(description.num_layers))
    final_norm = files.take("model.norm.weight", (hidden_size,))
    if description.tie_word_embeddings:
        output = Linear(embedding)
        files.check_all_taken(except_for=(_OUTPUT,))  # some exports repeat the tied tensor
    else:
        output = Linear(files.take(_OUTPUT, (vocab_size, hidden_size)))
        files.check_all_taken()
    cos_sin = cos_sin_table(description.rope, description.head_dim, max_positions).to(device)
    return Decoder(
        description,
        embedding=embedding,
        layers=layers,
        final_norm=final_norm,
        output=output,
        cos_sin=cos_sin,
    )


def _build_layer(description: DecoderDescription, files: WeightFiles, index: int) -> DecoderLayer:
    prefix = f"model.layers.{index}."
    hidden, inner = description.hidden_size, description.intermediate_size
    head_dim = description.head_dim
    num_q_rows, num_kv_rows = (
        n * head_dim for n in (description.num_heads, description.num_kv_heads)
    )

    def linear(names: dict[str, int], num_columns: int, has_bias: bool) -> Linear:
        weights = [f"{prefix}{name}.weight" for name in names]
        weight = files.take_rows(weights, [(rows, num_columns) for rows in names.values()])
        if not has_bias:
            return Linear(weight)
        biases = [f"{prefix}{name}.bias" for name in names]
        return Linear(weight, files.take_rows(biases, [(rows,) for rows in names.values()]))

    def norm(name: str, size: int) -> torch.Tensor:
        return files.take(f"{prefix}{name}.weight", (size,))

    qkv_rows = {
        "self_attn.q_proj": num_q_rows,
        "self_attn.k_proj": num_kv_rows,
        "self_attn.v_proj": num_kv_rows,
    }
    gate_up_rows = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    has_qk_norm, mlp_bias = description.qk_norm, description.mlp_bias
    return DecoderLayer(
        input_norm=norm("input_layernorm", hidden),
        qkv=linear(qkv_rows, hidden, description.qkv_bias),
        q_norm=norm("self_attn.q_norm", head_dim) if has_qk_norm else None,
        k_norm=norm("self_attn.k_norm", head_dim) if has_qk_norm else None,
        output=linear({"self_attn.o_proj": hidden}, num_q_rows, description.output_bias),
        post_attention_norm=norm("post_attention_layernorm", hidden),
        gate_up=linear(gate_up_rows, hidden, mlp_bias),
        down=linear({"mlp.down_proj": hidden}, inner, mlp_bias),
        sliding_window=description.sliding_windows[index],
    )
