"""One forward for every supported family, driven by a DecoderDescription.

Knows layers, weights and the KV cache. Knows nothing of sequences, scheduling or sampling.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.models.decoder_layer import DecoderLayer
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.embeddings.embedding import Embedding
from pagoda_engine.models.embeddings.layer_inputs import LayerInputs
from pagoda_engine.models.linear import Linear
from pagoda_engine.models.native_layers import native_layers
from pagoda_engine.models.norm import Norm
from pagoda_kernels import AttentionBatch
from pagoda_kernels.cut import Cut, CutShortError


class Decoder:
    """A decoder-only transformer over a paged KV cache."""

    def __init__(
        self,
        description: DecoderDescription,
        *,
        embedding: Embedding,
        positions: torch.Tensor | None,
        embedding_norm: Norm | None,
        layer_inputs: LayerInputs | None,
        layers: tuple[DecoderLayer, ...],
        final_norm: Norm,
        output: Linear,
        max_positions: int,
    ) -> None:
        """Put the parts together; all live on one device.

        Args:
            description: shapes and options.
            embedding: by token id.
            positions: ``[>= max_positions, hidden]``, or None where no positions are learned.
            embedding_norm: None: the embeddings are the residual.
            layer_inputs: None: layers are told nothing but the residual.
            layers: in order.
            final_norm: before the output projection.
            output: ``[V, hidden]``.
            max_positions: longest sequence; rotations cover it.
        """
        self.description = description
        self.max_positions = max_positions
        self._embedding = embedding
        self._positions = positions
        self._embedding_norm = embedding_norm
        self._layer_inputs = layer_inputs
        self._layers = layers
        self._final_norm = final_norm
        self._output = output
        self._kv_places = description.kv_places
        self._last_kv_layer = description.kv_layers[-1]
        # Rounded as the embeddings are: so did the training that it comes from.
        multiplier = torch.tensor(description.embedding_multiplier, dtype=embedding.dtype)
        self._multiplier = float(multiplier)
        self._native = native_layers(
            description, layers, embedding, final_norm, self._multiplier, positions, embedding_norm
        )

    @property
    def layers(self) -> tuple[DecoderLayer, ...]:
        """In order."""
        return self._layers

    @property
    def takes_last_rows(self) -> bool:
        """Whether `hidden` does less if it is told of the last rows' attention."""
        return self._native is None and self._last_kv_layer < len(self._layers) - 1

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._embedding.dtype

    @property
    def is_native(self) -> bool:
        """Whether all layers are one native call."""
        return self._native is not None

    def kv_layout(self, block_size: int, dtype: torch.dtype, scales: str = "") -> KvLayout:
        """Return what a cache for it should be: packed, where it reads that, which is faster.

        And in groups of layers, where some have windows that sequences are longer than.

        Args:
            block_size: tokens of a block.
            dtype: of KV.
            scales: which ones it has of KV in one byte, see `KvLayout`.
        """
        layout = self.description.kv_layout(block_size, dtype, scales, self.max_positions)
        native = self._native
        if native is None or dtype is not self._embedding.dtype:
            return layout
        return replace(layout, is_packed=native.can_pack(block_size))

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
        adapters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the KV of the new tokens and return logits; see `hidden`.

        Returns:
            ``[R, V]`` in the model's dtype.
        """
        hidden = self.hidden(token_ids, positions, batch, kv_cache, logit_rows, on_layer, adapters)
        return self.logits(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``[R, V]`` logits of ``[R, hidden]`` in the model's dtype."""
        logits = self._output(hidden)
        if self.description.logits_multiplier != 1:
            logits = logits * self.description.logits_multiplier
        cap = self.description.logits_soft_cap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: KvCache,
        logit_rows: torch.Tensor | None,
        on_layer: Callable[[int], None] | None = None,
        adapters: torch.Tensor | None = None,
        cut: Cut | None = None,
        last_rows: AttentionBatch | None = None,
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
            adapters: ``[T]`` int32 slot of each row's adapter, -1 for none; None: no row has one.
                What is computed of the other rows is the same to the bit.
            cut: looked at before each layer, where what is queued is computed at once.
            last_rows: lengths and block tables of the `logit_rows` alone, if these are the last of
                sequences, in order: layers behind the last KV are computed of no others then. None:
                the last layer's attention is computed of all rows.

        Returns:
            ``[R, hidden]`` in the model's dtype.

        Raises:
            CutShortError: `cut` was asked.
        """
        layout, inputs = kv_cache.layout, None
        if self._layer_inputs is not None:
            inputs = self._layer_inputs(token_ids, self._embedded(token_ids, positions))
        if self._native is not None:
            return self._native.hidden(
                token_ids,
                positions,
                batch,
                kv_cache.all_layers,
                logit_rows,
                on_layer,
                adapters,
                is_packed=layout.is_packed,
                places=self._places(layout),
                offsets=self._offsets(kv_cache),
                layer_inputs=inputs,
                cut=cut,
            )
        if layout.is_packed:
            raise ValueError(f"{layout.name}: only a native decoder of its dtype reads packed KV")
        residual = self._embedded(token_ids, positions)
        first_norm = self._layers[0].attention_in_norm
        hidden = residual if first_norm is None else first_norm(residual)
        last = dropping = len(self._layers) - 1
        if logit_rows is not None and (last_rows is not None or not logit_rows.numel()):
            dropping = self._last_kv_layer
        for i, layer in enumerate(self._layers):
            if cut is not None and cut.is_asked:
                raise CutShortError
            place = self._kv_places[i]
            group = 0 if layout.groups is None else layout.groups.places[place][0]
            blocks = batch.of_group(group)
            cache, slots = kv_cache.layer(place), blocks.slot_mapping
            q = layer.attention.write(hidden, positions, cache, slots, adapters)
            if on_layer is not None:
                on_layer(i)
            if i == dropping and logit_rows is not None and not logit_rows.numel():
                if on_layer is not None:
                    for later in range(i + 1, last + 1):
                        on_layer(later)
                return residual[:0]
            attended = layer.attention.attend(q, cache, blocks)
            if i == dropping and logit_rows is not None:  # nobody reads the other rows any more
                if last_rows is not None:
                    positions, batch = positions.index_select(0, logit_rows), last_rows
                attended = attended.index_select(0, logit_rows)
                residual = residual.index_select(0, logit_rows)
                if adapters is not None:
                    adapters = adapters.index_select(0, logit_rows)
                if inputs is not None:
                    inputs = inputs.index_select(0, logit_rows)
                if layer.is_parallel:
                    hidden = hidden.index_select(0, logit_rows)
            next_norm = self._final_norm if i == last else self._layers[i + 1].attention_in_norm
            own = None if inputs is None else inputs[:, i]
            hidden, residual = layer.finish(attended, hidden, residual, next_norm, adapters, own)
        return hidden

    def _places(self, layout: KvLayout) -> Sequence[tuple[int, int]] | None:
        """Return for each layer the group and the place there of the one whose KV it reads."""
        if layout.groups is not None:
            return [layout.groups.places[place] for place in self._kv_places]
        if self.description.kv_sources:
            return [(0, place) for place in self._kv_places]
        return None

    def _offsets(self, kv_cache: KvCache) -> torch.Tensor | None:
        """Return where each layer's K and V lie in a block, if not at even distances."""
        if kv_cache.offsets is None:
            return None
        return kv_cache.offsets.index_select(0, torch.tensor(self._kv_places))

    def _embedded(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the first residual, ``[T, hidden]``."""
        embedded = self._embedding(token_ids)
        if self._multiplier != 1:
            embedded = embedded * self._multiplier
        if self._positions is not None:
            embedded = embedded + F.embedding(positions, self._positions)
        return embedded if self._embedding_norm is None else self._embedding_norm(embedded)
