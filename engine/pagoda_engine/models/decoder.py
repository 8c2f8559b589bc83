"""One forward for every supported family, driven by a DecoderDescription.

Knows layers, weights and the KV cache. Knows nothing of sequences, scheduling or sampling.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.feed_forward import DenseFeedForward, Experts
from pagoda_engine.models.linear import Linear
from pagoda_kernels import AttentionBatch, add_rms_norm, paged_attention, rms_norm, write_qkv
from pagoda_kernels.native.decoder_layers import DecoderLayers, LayerWeights


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
        feed_forward: dense or experts.
        sliding_window: keys a query sees, itself included; None for all.
    """

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    post_attention_norm: torch.Tensor
    feed_forward: DenseFeedForward | Experts
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
        self._native = self._native_layers()

    @property
    def max_positions(self) -> int:
        """Longest sequence that the rotation table covers."""
        return self._cos_sin.shape[0]

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a token's result is the same to the bit whatever is computed beside it."""
        return self._native is not None

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: KvCache,
        logit_rows: torch.Tensor | None,
        on_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Write the KV of the new tokens and return logits; see `hidden`.

        Returns:
            ``[R, V]`` in the model's dtype.
        """
        return self.logits(self.hidden(token_ids, positions, batch, kv_cache, logit_rows, on_layer))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``[R, V]`` logits of ``[R, hidden]`` in the model's dtype."""
        return self._output(hidden)

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: KvCache,
        logit_rows: torch.Tensor | None,
        on_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Write the KV of the new tokens and return what `logits` takes.

        On CUDA everything is queued on the current stream and nothing waits for the device: shapes
        follow from the arguments' shapes and the batch's host fields, so that a CUDA graph can
        capture it.

        Args:
            token_ids: ``[T]`` int64.
            positions: ``[T]`` int32 or int64.
            batch: lengths and block tables of the T tokens.
            kv_cache: written at ``batch.slot_mapping``, read by attention.
            logit_rows: ``[R]`` int64 rows of the T tokens whose logits are needed; None for all.
            on_layer: called with a layer's index once the write of its KV is queued.

        Returns:
            ``[R, hidden]`` in the model's dtype.
        """
        if self._native is not None and kv_cache.layout.dtype is self._embedding.dtype:
            return self._native.hidden(
                token_ids, positions, batch, kv_cache.all_layers, logit_rows, on_layer
            )
        shape, eps = self.description, self._eps
        residual = F.embedding(token_ids, self._embedding)
        hidden = rms_norm(residual, self._layers[0].input_norm, eps)
        last = len(self._layers) - 1
        for i, layer in enumerate(self._layers):
            k_cache, v_cache = kv_cache.layer(i)
            q = write_qkv(
                layer.qkv(hidden),
                positions,
                self._cos_sin,
                k_cache,
                v_cache,
                batch.slot_mapping,
                num_heads=shape.num_heads,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=eps,
            )
            if on_layer is not None:
                on_layer(i)
            if i == last and logit_rows is not None and not logit_rows.numel():
                return residual[:0]
            attended = paged_attention(
                q,
                k_cache,
                v_cache,
                batch,
                scale=self._scale,
                sliding_window=layer.sliding_window,
            ).view(len(q), -1)
            if i == last and logit_rows is not None:  # nobody reads the other rows any more
                attended = attended.index_select(0, logit_rows)
                residual = residual.index_select(0, logit_rows)
            hidden, residual = add_rms_norm(
                layer.output(attended), residual, layer.post_attention_norm, eps
            )
            hidden = layer.feed_forward(hidden)
            next_norm = self._final_norm if i == last else self._layers[i + 1].input_norm
            hidden, residual = add_rms_norm(hidden, residual, next_norm, eps)
        return hidden

    def _native_layers(self) -> DecoderLayers | None:
        """All layers as one call, if every projection is packed for it."""
        layers: list[LayerWeights] = []
        for layer in self._layers:
            if not isinstance(layer.feed_forward, DenseFeedForward):
                return None
            qkv, output = layer.qkv.packed, layer.output.packed
            gate_up, down = layer.feed_forward.gate_up.packed, layer.feed_forward.down.packed
            if qkv is None or output is None or gate_up is None or down is None:
                return None
            layers.append(
                LayerWeights(
                    input_norm=layer.input_norm,
                    post_attention_norm=layer.post_attention_norm,
                    q_norm=layer.q_norm,
                    k_norm=layer.k_norm,
                    qkv=qkv,
                    output=output,
                    gate_up=gate_up,
                    down=down,
                    window=layer.sliding_window,
                )
            )
        shape = self.description
        native = DecoderLayers(
            layers,
            embedding=self._embedding,
            final_norm=self._final_norm,
            cos_sin=self._cos_sin,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=self._eps,
        )
        return native if native.fits else None
