"""What a family calls the tensors of its checkpoints, and how it lays them out.

Knows names. Knows nothing of shapes.
"""

from dataclasses import dataclass, replace
from typing import Literal

QkvLayout = Literal["joined", "by_head"]
"""Rows of one tensor with Q, K and V: all of Q, then of K, then of V; or so for every head."""

ExpertsLayout = Literal["each", "stacked", "stacked_rows"]
"""Tensors of every expert; or one for all of them, ``[E, inputs, outputs]`` without ``.weight``,
where columns of gate and up take turns, and biases end in ``_bias``; or one for all of them,
``[E, outputs, inputs]`` without ``.weight``, rows of the gate first."""

_RENAMED = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),  # as transformers has it in memory since 4.52
)
_VISION = (
    *("vision_tower.", "multi_modal_projector."),
    *("model.vision_tower.", "model.multi_modal_projector."),
)


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Names without ``.weight`` and ``.bias``. The defaults are Llama's.

    An empty name: the model has no such tensor. Several tensors of one projection are joined by
    rows; a checkpoint that has them joined already names one.

    Attributes:
        embedding: of tokens.
        positions: embedding of positions, added to that of tokens.
        embedding_norm: norm of the embeddings.
        final_norm: norm before the output projection.
        output: the output projection.
        layer: prefix of a layer's tensors, with ``{}`` for its index; all further names follow it.
        attention_in_norm: norm of what attention reads.
        attention_out_norm: norm of what it adds to the residual.
        feed_forward_in_norm: as `attention_in_norm`; empty in a parallel block: the same norm.
        feed_forward_out_norm: as `attention_out_norm`.
        qkv: projections of Q, K and V.
        latents: where attention reads latents: projections to Q (or to its latent) and to what is
            cached.
        q_up: projection of Q's latent to Q.
        kv_up: projection of what is cached to K and V.
        k_up: in place of that one to K of each head, with ``{}`` for its index, stored
            ``[inputs, outputs]``.
        v_up: as `k_up`, one to V, stored as any.
        q_latent_norm: norm of Q's latent.
        kv_latent_norm: norm of the latent of K and V.
        q_norm: norm of Q before RoPE.
        k_norm: norm of K before RoPE.
        sinks: of attention, one for each head; the name has no ``.weight``.
        attention_output: projection back to the residual.
        gate_up: projections of a dense feed-forward part with a gate, of the gate first.
        up: that of one without a gate.
        down: projection back to the residual.
        router: scores of the experts.
        router_norm: weight of an RMS norm of what the router reads, times ``sqrt(hidden)``, without
            ``.weight``; empty: it reads what experts read.
        expert_scales: of the weights of each expert, whole name; empty: there are none.
        experts_in_norm: norm of what experts read that are beside a dense part.
        experts_out_norm: norm of what they add.
        dense_out_norm: norm of what that dense part adds.
        router_bias: added to the scores when experts are chosen, whole name; empty: nothing is.
        expert: prefix of an expert's tensors, with ``{}`` for its index where each has its own.
        expert_gate_up: as `gate_up`, after that prefix.
        expert_down: as `down`, after that prefix.
        shared_expert: prefix of the shared expert's, which are called as a dense layer's.
        shared_expert_gate: the sigmoid of this is its weight; empty: it counts as it is.
        experts_layout: see ExpertsLayout; stacked ones name one `expert_gate_up`.
        qkv_layout: see QkvLayout; for one `qkv` tensor.
        is_transposed: weights of a layer's projections are stored ``[inputs, outputs]``.
        optional_prefix: of all names; exports of the bare model leave it out.
        layer_input_rows: table of what layers are told of tokens.
        layer_inputs: projection of the embeddings to what they are told besides.
        layer_inputs_norm: norm of that.
        layer_input_gate: of a layer, see `LayerInput`; so are
        layer_input_projection: and
        layer_input_norm.
        layer_scalar: a number that the residual is multiplied by after the layer; the name has no
            ``.weight``.
        ignored: ends of names of what is no weight, as masks that old exports carry.
        ignored_prefixes: beginnings of names of what is not computed here.
        vision_prefixes: those of what reads images, which is not computed here either.
        renamed_prefixes: beginnings of names in the files, each with what stands for it here.
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    embedding_norm: str = ""
    final_norm: str = "model.norm"
    output: str = "lm_head"
    layer: str = "model.layers.{}."
    attention_in_norm: str = "input_layernorm"
    attention_out_norm: str = ""
    feed_forward_in_norm: str = "post_attention_layernorm"
    feed_forward_out_norm: str = ""
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    latents: tuple[str, ...] = ()
    q_up: str = "self_attn.q_b_proj"
    kv_up: str = "self_attn.kv_b_proj"
    k_up: str = ""
    v_up: str = ""
    q_latent_norm: str = "self_attn.q_a_layernorm"
    kv_latent_norm: str = "self_attn.kv_a_layernorm"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = ""
    attention_output: str = "self_attn.o_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    router_norm: str = ""
    expert_scales: str = ""
    experts_in_norm: str = ""
    experts_out_norm: str = ""
    dense_out_norm: str = ""
    router_bias: str = ""
    expert: str = "mlp.experts.{}."
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    shared_expert: str = "mlp.shared_expert."
    shared_expert_gate: str = "mlp.shared_expert_gate"
    experts_layout: ExpertsLayout = "each"
    qkv_layout: QkvLayout = "joined"
    is_transposed: bool = False
    optional_prefix: str = ""
    layer_input_rows: str = "model.embed_tokens_per_layer"
    layer_inputs: str = "model.per_layer_model_projection"
    layer_inputs_norm: str = "model.per_layer_projection_norm"
    layer_input_gate: str = "per_layer_input_gate"
    layer_input_projection: str = "per_layer_projection"
    layer_input_norm: str = "post_per_layer_input_norm"
    layer_scalar: str = ""
    ignored: tuple[str, ...] = ()
    ignored_prefixes: tuple[str, ...] = ()
    vision_prefixes: tuple[str, ...] = ()
    renamed_prefixes: tuple[tuple[str, str], ...] = ()

    def inside_of_whole(self) -> "WeightNames":
        """Return the names of a text model that is part of one of text and images.

        transformers has its tensors under ``language_model``, beside a vision tower and a
        projector.
        """
        return replace(self, renamed_prefixes=_RENAMED, vision_prefixes=_VISION)

    def renamed(self, name: str) -> str:
        """Return what a tensor of the files is called here."""
        for theirs, ours in self.renamed_prefixes:
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name
