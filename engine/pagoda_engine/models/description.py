"""A decoder as data: everything that tells one supported model from another.

Knows shapes and options. Knows nothing of files or devices.
"""

from dataclasses import dataclass

import torch

from pagoda_engine.models.rope_scaling import RopeDescription


@dataclass(frozen=True, slots=True)
class ExpertsDescription:
    """A mixture of SwiGLU experts in place of some layers' feed-forward.

    Attributes:
        num_experts: experts of a layer.
        num_experts_per_tok: how many of them a token goes through, the likeliest by softmax.
        intermediate_size: width of one expert.
        norm_topk_prob: the weights of a token's experts are divided by their sum.
        layers: indices of the layers that have experts.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class DecoderDescription:
    """Shapes and options of one decoder: pre-norm, RoPE, grouped-query attention, SwiGLU.

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
        rms_norm_eps: of every norm.
        rope: see RopeDescription.
        qkv_bias: the Q, K and V projections have biases.
        output_bias: the attention's output projection has one.
        mlp_bias: the feed-forward projections have them.
        qk_norm: each head of Q and K is RMS-normed before RoPE.
        sliding_windows: for each layer the keys a query sees, itself included; None for all.
        tie_word_embeddings: the output projection is the embedding.
        dtype: of the checkpoint, by torch's name; empty if not said.
        experts: None: every layer is dense.
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
    rms_norm_eps: float
    rope: RopeDescription
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    dtype: str
    experts: ExpertsDescription | None = None

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of all weights on the device, every tied one once."""
        hidden, head_dim = self.hidden_size, self.head_dim
        q_width = self.num_heads * head_dim
        qkv_width = q_width + 2 * self.num_kv_heads * head_dim
        attention = hidden * (qkv_width + q_width + 2)  # and the layer's two norms
        attention += self.qkv_bias * qkv_width + self.output_bias * hidden
        attention += self.qk_norm * 2 * head_dim
        dense = 3 * hidden * self.intermediate_size
        dense += self.mlp_bias * (2 * self.intermediate_size + hidden)
        num_sparse = sparse = 0
        if self.experts is not None:
            num_sparse = len(self.experts.layers)
            sparse = self.experts.num_experts * hidden * (1 + 3 * self.experts.intermediate_size)
        num_elements = self.num_layers * attention + hidden  # and the last norm
        num_elements += (self.num_layers - num_sparse) * dense + num_sparse * sparse
        num_elements += (1 if self.tie_word_embeddings else 2) * self.vocab_size * hidden
        return num_elements * dtype.itemsize

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the size of one token's K and V, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize
