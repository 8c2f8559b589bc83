"""A decoder as data: the recipe that tells one supported model from another.

Knows shapes, options and names of weights. Knows nothing of files or devices.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.layer_groups import layer_groups
from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.models.rope_scaling import RopeDescription
from pagoda_engine.models.weights.names import WeightNames
from pagoda_kernels.moe.expert_gate import ExpertGate

NormKind = Literal["rms", "rms_unit_offset", "layer"]
"""RMS norm; the same with weights stored minus one; LayerNorm."""

QkNorm = Literal["none", "head", "each_head", "joined"]
"""Norm of Q and K before RoPE: none; over a head, with one weight ``[D]`` for all; over a head,
with a weight for each ``[H, D]``; over all heads at once, ``[H * D]``."""

Activation = Literal["silu", "gelu", "gelu_tanh"]
"""Of the feed-forward part; gelu_tanh is the approximation."""


ExpertsFormat = Literal["dense", "mxfp4"]
"""How a checkpoint holds experts: floats; or numbers of 4 bits, 32 to a scale, dense once read."""


@dataclass(frozen=True, slots=True)
class ExpertsDescription:
    """A mixture of SwiGLU experts in place of some layers' feed-forward.

    Whether experts are chosen by a bias too, and the shared one is weighted, is in `WeightNames`.

    Attributes:
        num_experts: experts of a layer.
        num_experts_per_tok: how many of them a token goes through, those with the best scores.
        intermediate_size: width of one expert.
        norm_topk_prob: the weights of a token's experts are divided by their sum.
        layers: indices of the layers that have experts.
        shared_size: width of the expert that every token goes through besides; 0: there is none.
        scoring: what makes scores of the router's logits.
        num_groups: equal groups of experts that follow one another; 1 for none.
        top_groups: the best groups, from which alone a token's experts are chosen.
        routed_scale: factor of the weights, after `norm_topk_prob`.
        is_router_float32: the router's weight and product are fp32, whatever the model's dtype.
        has_bias: the router has one, and both projections of every expert.
        gate: of the experts; None: SiLU.
        stored: see ExpertsFormat.
        is_beside_dense: layers with experts have their dense part, too, and add both; what each
            reads and adds has norms of its own.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: frozenset[int]
    shared_size: int = 0
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    num_groups: int = 1
    top_groups: int = 1
    routed_scale: float = 1.0
    is_router_float32: bool = False
    has_bias: bool = False
    gate: ExpertGate | None = None
    stored: ExpertsFormat = "dense"
    is_beside_dense: bool = False


@dataclass(frozen=True, slots=True)
class LatentDescription:
    """Multi-head latent attention: heads share one low-rank latent of K and V for each token.

    Attributes:
        q_rank: width of the latent that Q is made of; 0: Q is made of the residual.
        kv_rank: width of the latent that K and V are made of, R.
        nope_dim: dims of a head's Q and K that do not turn.
        rope_dim: dims that turn, after those, P; K's are the same for all heads.
        value_dim: dims of a head's V.
        norm_eps: of the norms of both latents.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    norm_eps: float

    @property
    def head_dim(self) -> int:
        """Width of a head's Q and K."""
        return self.nope_dim + self.rope_dim

    @property
    def width(self) -> int:
        """Width of what is cached of a token: the latent of K and V, then the K that turned."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class LayerInputsDescription:
    """What each layer is told of a token besides the residual, see `LayerInputs`.

    Attributes:
        vocab_size: rows of their table.
        width: of what one layer is told.
    """

    vocab_size: int
    width: int


@dataclass(frozen=True, slots=True)
class DecoderDescription:
    """Shapes and options of one decoder. The defaults are Llama's.

    Which norms a layer has, and whether positions are learned, is in `names`: what has a name is
    there. With ``N`` for a norm that is there, and nothing for one that is not, a layer is::

        x = x + m * N(attention(N(x)))             sequential
        x = x + m * N(feed_forward(N(x)))

        x = x + m * (N(attention(N1(x))) + N(feed_forward(N2(x))))     parallel; N2 may be N1

    Attributes:
        architecture: as the checkpoint names it.
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the feed-forward layer.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides num_heads.
        head_dim: width of one head; num_heads * head_dim may differ from hidden_size.
        max_position_embeddings: positions the model was made for, extended by its rope scaling.
        norm_eps: of every norm.
        rope: see RopeDescription; None: no rotation.
        qkv_bias: the Q, K and V projections have biases.
        output_bias: the attention's output projection has one.
        mlp_bias: the feed-forward projections have them.
        qk_norm: see QkNorm.
        sliding_windows: for each layer the keys a query sees, itself included; None for all.
        tie_word_embeddings: the output projection is the embedding.
        dtype: of the checkpoint, by torch's name; empty if not said.
        experts: None: every layer is dense.
        names: of the checkpoint's tensors.
        norm: kind of all norms but those of `qk_norm` "each_head", which are LayerNorms.
        norm_bias: norms have biases.
        layer_ropes: rotation of each layer where they differ; empty: `rope` for all.
        is_parallel: attention and feed-forward part read the same residual.
        activation: of the feed-forward part.
        is_gated: it has a gate; else it is ``down(activation(up(x)))``.
        attention_scale: factor of the scores; 0: ``head_dim ** -0.5``.
        attention_soft_cap: scores s become ``cap * tanh(s / cap)``; None: they are unbounded.
        embedding_multiplier: of the embeddings, itself rounded to the model's dtype.
        residual_multiplier: ``m`` above.
        logits_multiplier: of the logits.
        logits_soft_cap: as `attention_soft_cap`, for the logits after that.
        alibi_bias_max: scores fall with the distance to the key, at a slope for each head down to
            ``2 ** -alibi_bias_max`` (ALiBi); 0: they do not.
        qkv_clip: bound of the absolute values of Q, K and V before RoPE; None: they have none.
        latent: attention reads latents, `num_kv_heads` heads of K and V are made of each; None: it
            reads K and V.
        layer_heads: KV heads and their width, which is that of Q's too, of each layer where they
            differ; empty: `num_kv_heads` and `head_dim` for all.
        k_is_v_layers: indices of layers whose V is made by K's projection; neither is the other
            after norms and rotation.
        is_v_normed: V is RMS-normed over each head, without a weight.
        kv_sources: for each layer the one whose K and V it attends to: itself, or an earlier one,
            and then it makes none; empty: all have their own.
        layer_inputs: None: layers are told nothing but the residual.
        layer_intermediate_sizes: of each layer where they differ; empty: `intermediate_size`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    rope: RopeDescription | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: QkNorm
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    dtype: str
    experts: ExpertsDescription | None = None
    names: WeightNames = field(default_factory=WeightNames)
    norm: NormKind = "rms"
    norm_bias: bool = False
    layer_ropes: tuple[RopeDescription | None, ...] = ()
    is_parallel: bool = False
    activation: Activation = "silu"
    is_gated: bool = True
    attention_scale: float = 0.0
    attention_soft_cap: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    logits_soft_cap: float | None = None
    alibi_bias_max: float = 0.0
    qkv_clip: float | None = None
    latent: LatentDescription | None = None
    layer_heads: tuple[LayerHeads, ...] = ()
    k_is_v_layers: frozenset[int] = frozenset()
    is_v_normed: bool = False
    kv_sources: tuple[int, ...] = ()
    layer_inputs: LayerInputsDescription | None = None
    layer_intermediate_sizes: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return self.attention_scale or self.head_dim**-0.5

    def heads(self, layer: int) -> LayerHeads:
        """Return the KV heads of a layer that caches K and V, of another where it reads those."""
        return self.layer_heads[layer] if self.layer_heads else self._usual_heads

    @property
    def _usual_heads(self) -> LayerHeads:
        return LayerHeads(self.num_kv_heads, self.head_dim)

    def intermediate_size_of(self, layer: int) -> int:
        """Return the width of a layer's dense feed-forward part."""
        sizes = self.layer_intermediate_sizes
        return sizes[layer] if sizes else self.intermediate_size

    def has_kv(self, layer: int) -> bool:
        """Whether a layer makes K and V, and reads no other one's."""
        return not self.kv_sources or self.kv_sources[layer] == layer

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers that have KV of their own, in the order in which a block has them."""
        return tuple(i for i in range(self.num_layers) if self.has_kv(i))

    @property
    def kv_places(self) -> tuple[int, ...]:
        """For each layer the place among `kv_layers` of the one whose KV it reads."""
        nth = {layer: place for place, layer in enumerate(self.kv_layers)}
        return tuple(nth[source] for source in self.kv_sources or range(self.num_layers))

    def rope_width(self, layer: int) -> int:
        """Return the dims of a layer's heads that rotations are of, of all or a part."""
        return self.heads(layer).head_dim if self.latent is None else self.latent.rope_dim

    @property
    def ropes(self) -> tuple[RopeDescription | None, ...]:
        """Rotation of each layer."""
        return self.layer_ropes or (self.rope,) * self.num_layers

    @property
    def kv_window(self) -> int | None:
        """Latest tokens that any layer attends to; None: one attends to all."""
        windows = [window for window in self.sliding_windows if window is not None]
        return max(windows) if len(windows) == self.num_layers else None

    def for_length(self, max_positions: int) -> "DecoderDescription":
        """Return it with the rotations that it has where no sequence is longer.

        Some depend on that (see `RopeDescription.for_length`), and so does the KV that they turn.
        """

        def turned(rope: RopeDescription | None, layer: int) -> RopeDescription | None:
            return None if rope is None else rope.for_length(max_positions, self.rope_width(layer))

        return replace(
            self,
            rope=turned(self.rope, 0),
            layer_ropes=tuple(turned(rope, i) for i, rope in enumerate(self.layer_ropes)),
        )

    def kv_layout(
        self, block_size: int, dtype: torch.dtype, scales: str = "", max_positions: int = 0
    ) -> KvLayout:
        """Return what blocks of so many tokens hold, with scales that `KvLayout` tells of.

        Layers are in groups where a sequence may be longer than their windows, by `max_positions`.
        """
        if self.latent is not None:
            return KvLayout(self.num_layers, block_size, 1, self.latent.width, dtype, num_planes=1)
        layers = self.kv_layers
        windows = [self.sliding_windows[layer] for layer in layers]
        heads = [self.heads(layer) for layer in layers]
        is_mixed = len(set(heads)) > 1
        groups = layer_groups(windows, [each.width for each in heads])
        if groups is not None and groups.window >= max_positions:
            groups = None
        if is_mixed:
            return KvLayout.of_mixed(block_size, heads, dtype, scales=scales, groups=groups)
        count, width = heads[0].num_kv_heads, heads[0].head_dim
        return KvLayout(len(layers), block_size, count, width, dtype, scales=scales, groups=groups)

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the size of what is cached of one token, all layers."""
        return self.kv_layout(1, dtype).block_bytes
