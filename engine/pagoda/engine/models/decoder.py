"""One forward for every supported family, driven by a DecoderDescription.

Knows layers, weights and the KV cache. Knows nothing of sequences, scheduling or sampling.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda.engine.cache.kv_cache import KvCache
from pagoda.engine.models.description import DecoderDescription
from pagoda.engine.models.linear import Linear
from pagoda.kernels import (
    AttentionBatch,
    add_rms_norm,
    apply_rope,
    paged_attention,
    rms_norm,
    silu_mul,
    write_kv,
)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer.

    Attributes:
        input_norm: ``[hidden]``.
        qkv: ``[(H + 2 * HK) * D, hidden]``, rows of Q, then K, then V.
        q_norm: ``[D]``, or None without QK norm.
        k_norm: as `q_norm`.
        output: ``[hidden, H * D]``.
        post_attention_norm: ``[hidden]``.
        gate_up: ``[2 * intermediate, hidden]``, rows of gate, then up.
        down: ``[hidden, intermediate]``.
        sliding_window: keys a query sees, itself included; None for all.
    """

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    sliding_window: int | None


class Decoder:
    """A decoder-only transformer over a paged KV cache."""

    def __init__(
        self,
        description: DecoderDescription,
        *,
        embedding: torch.Tensor,
        layers: tuple[DecoderLayer, ...],
        final_norm: torch.Tensor,
        output: Linear,
        cos_sin: torch.Tensor,
    ) -> None:
        """Put the parts together; all live on one device.

        Args:
            description: shapes and options.
            embedding: ``[V, hidden]``.
            layers: in order.
            final_norm: ``[hidden]``.
            output: ``[V, hidden]``.
            cos_sin: ``[max_positions, D]`` float32, cosines, then sines.
        """
        self.description = description
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._output = output
        self._cos_sin = cos_sin
        self._eps = description.rms_norm_eps
        self._scale = description.head_dim**-0.5

    @property
    def max_positions(self) -> int:
        """Longest sequence that the rotation table covers."""
        return self._cos_sin.shape[0]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: KvCache,
        logit_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Write the KV of the new tokens and return logits.

        Args:
            token_ids: ``[T]`` int64.
            positions: ``[T]`` int64.
            batch: lengths and block tables of the T tokens.
            kv_cache: written at ``batch.slot_mapping``, read by attention.
            logit_rows: ``[R]`` int64 rows of the T tokens whose logits are needed; None for all.

        Returns:
            ``[R, V]`` in the model's dtype.
        """
        eps = self._eps
        residual = F.embedding(token_ids, self._embedding)
        hidden = rms_norm(residual, self._layers[0].input_norm, eps)
        last = len(self._layers) - 1
        for i, layer in enumerate(self._layers):
            attended = self._attention(layer, i, hidden, positions, batch, kv_cache)
            if i == last and logit_rows is not None:  # nobody reads the other rows any more
                if not logit_rows.numel():
                    return residual.new_empty((0, self.description.vocab_size))
                attended = attended.index_select(0, logit_rows)
                residual = residual.index_select(0, logit_rows)
            hidden, residual = add_rms_norm(
                layer.output(attended), residual, layer.post_attention_norm, eps
            )
            hidden = layer.down(silu_mul(layer.gate_up(hidden)))
            next_norm = self._final_norm if i == last else self._layers[i + 1].input_norm
            hidden, residual = add_rms_norm(hidden, residual, next_norm, eps)
        return self._output(hidden)

    def _attention(
        self,
        layer: DecoderLayer,
        index: int,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: KvCache,
    ) -> torch.Tensor:
        shape = self.description
        num_heads, num_kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        heads = layer.qkv(hidden).view(-1, num_heads + 2 * num_kv_heads, head_dim)
        # [T, H, D], [T, HK, D], [T, HK, D]
        q, k, v = heads.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, self._eps)
            k = rms_norm(k, layer.k_norm, self._eps)
        q, k = apply_rope(q, k, positions, self._cos_sin)
        k_cache, v_cache = kv_cache.layer(index)
        write_kv(k, v, k_cache, v_cache, batch.slot_mapping)
        attended = paged_attention(
            q,
            k_cache,
            v_cache,
            batch,
            scale=self._scale,
            sliding_window=layer.sliding_window,
        )
        return attended.view(-1, num_heads * head_dim)
