"""The layers of a decoder as one native call: see `sources/pagoda.c`."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.cut import Cut, CutShortError
from pagoda_kernels.native.layer_weights import LayerWeights, PackedBeside, address_of
from pagoda_kernels.native.library import SCRATCH_BYTES, native_library
from pagoda_kernels.native.memory import room_of
from pagoda_kernels.native.packed_experts import PackedExperts, PackedFeedForward
from pagoda_kernels.native.packed_latents import PackedLatents
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.packed_lora import check_adapters
from pagoda_kernels.native.structures import AttentionShape, Batch, Bundle, Decoder, Layer, Step

GROUP_KEYS = 16
"""Keys that lie side by side in packed KV (packed_kv.h)."""
PACKED_WIDTH = 32
"""What a head of packed KV must be a multiple of."""
CACHE_KINDS = {torch.float8_e4m3fn: 1, torch.int8: 2}
"""Of a cache in one byte, as `sources/one_byte.h` numbers them."""
NormKind = Literal["rms", "rms_unit_offset", "layer"]
_NORM_KINDS: dict[NormKind, int] = {"rms": 0, "rms_unit_offset": 1, "layer": 2}  # as in rows.h


class DecoderLayers:
    """Norms, RoPE or ALiBi, attention over cached K and V or latents, an MLP or experts."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        *,
        embedding: torch.Tensor | PackedLinear,
        final_norm: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        eps: float,
        embedding_multiplier: float = 1.0,
        residual_multiplier: float = 1.0,
        norm: NormKind = "rms",
        soft_cap: float | None = None,
        is_parallel: bool = False,
        position_table: torch.Tensor | None = None,
        embedding_norm: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> None:
        """Tell the C sources where everything is; keeps it alive.

        Args:
            layers: in order; all attend to K and V, or all to latents.
            embedding: ``[V, hidden]``, or the packed output projection that holds it.
            final_norm: as those of `LayerWeights`.
            num_heads: of Q, H.
            num_kv_heads: of K and V, HK; with latents 1.
            head_dim: of what is cached, D; with latents their width.
            scale: factor of the scores.
            eps: of the norms.
            embedding_multiplier: of the embeddings, rounded to their dtype.
            residual_multiplier: of all that is added to the residual.
            norm: kind of all norms but those of latents and of each head; of rms_unit_offset the
                factor is 1 + weight.
            soft_cap: of scores, see `paged_attention`; None: there is none.
            is_parallel: attention and feed-forward part read the same residual.
            position_table: ``[max_positions, hidden]``, added to the embeddings; None: there is
                none.
            embedding_norm: of those, as `final_norm`; None: they are the residual.
            alibi_slopes: ``[H]`` fp32, contiguous, see `paged_attention`; None: there are none.
        """
        library = native_library()
        assert library is not None, "there are no packed projections without it"
        self._library = library
        self._kept = (
            tuple(layers),
            (embedding, final_norm, position_table, embedding_norm, alibi_slopes),
        )
        self._dtype = embedding.dtype
        parts = [layer.feed_forward for layer in layers]
        both = [part for part in parts if isinstance(part, PackedBeside)]
        dense = [part for part in parts if isinstance(part, PackedFeedForward)]
        dense += [part.dense for part in both]
        told = [layer.layer_input for layer in layers if layer.layer_input is not None]
        assert len(told) in (0, len(layers)), "all layers are told of tokens, or none is"
        self._told_width = told[0].gate.num_outputs if told else 0
        self._inner = max((part.down.width for part in dense), default=self._told_width)
        self._inner = max(self._inner, self._told_width)
        self._experts = [part for part in parts if isinstance(part, PackedExperts)]
        self._experts += [part.experts for part in both]
        self._has_both = bool(both)
        latents = [each.attention for each in layers if isinstance(each.attention, PackedLatents)]
        assert len(latents) in (0, len(layers)), "all layers have latents, or none has"
        self._latents = latents[0] if latents else None
        self._has_scales = all(layer.has_kv_scales for layer in layers)
        heads = [_heads(layer) or (num_kv_heads, head_dim) for layer in layers]
        shapes = {
            each: AttentionShape(
                num_heads=num_heads,
                num_kv_heads=each[0],
                head_dim=each[1],
                scale=scale,
                is_bf16=self._dtype is torch.bfloat16,
                soft_cap=soft_cap or 0.0,
            )
            for each in heads
        }
        self._shapes = tuple(shapes.values())
        structures = (
            layer.structure(shapes[each]) for layer, each in zip(layers, heads, strict=True)
        )
        self._layers = (Layer * len(layers))(*structures)
        self._decoder = Decoder(
            is_bf16=self._dtype is torch.bfloat16,
            hidden_size=final_norm.shape[-1],
            num_layers=len(layers),
            eps=eps,
            embedding=None if isinstance(embedding, PackedLinear) else embedding.data_ptr(),
            tied=embedding.address if isinstance(embedding, PackedLinear) else None,
            final_norm=final_norm.data_ptr(),
            layers=self._layers,
            embedding_multiplier=embedding_multiplier,
            residual_multiplier=residual_multiplier,
            norm_kind=_NORM_KINDS[norm],
            is_parallel=is_parallel,
            position_table=address_of(position_table),
            embedding_norm=address_of(embedding_norm),
            alibi_slopes=address_of(alibi_slopes),
        )

    @property
    def misfit(self) -> str:
        """What of the heads is not computed here, in words; empty: nothing."""
        return next(filter(None, map(self._misfit, self._shapes)), "")

    def _misfit(self, shape: AttentionShape) -> str:
        library = self._library
        if self._latents is None:
            needed = library.scratch_bytes(shape)
        else:
            needed = library.latents_scratch_bytes(self._latents.structure, shape)
        heads = f"{shape.num_heads} heads of {shape.head_dim} dims"
        if shape.head_dim % 2:
            return f"{heads}, must be even"
        if needed > SCRATCH_BYTES:
            return f"{heads} take {needed} bytes of a thread, must be at most {SCRATCH_BYTES}"
        return ""

    def can_pack(self, block_size: int) -> bool:
        """Whether KV may lie in blocks of this size as attention multiplies it, which is faster."""
        is_even = not any(shape.head_dim % PACKED_WIDTH for shape in self._shapes)
        return is_even and not block_size % GROUP_KEYS and self._latents is None

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv: torch.Tensor,
        logit_rows: torch.Tensor | None,
        on_layer: Callable[[int], None] | None = None,
        adapters: torch.Tensor | None = None,
        *,
        is_packed: bool = False,
        places: Sequence[tuple[int, int]] | None = None,
        offsets: torch.Tensor | None = None,
        layer_inputs: torch.Tensor | None = None,
        cut: Cut | None = None,
    ) -> torch.Tensor:
        """Write the KV of the new tokens and return the last norm's rows.

        Args:
            token_ids: ``[T]`` int64.
            positions: ``[T]``.
            batch: lengths and block tables of the T tokens.
            kv: ``[2, num_layers, num_blocks, block_size, HK, D]``, with latents ``[1, ...]``;
                blocks dense, of the dtype of the weights; or float8_e4m3fn or int8, if layers have
                scales. With `offsets` ``[1, 1, num_blocks, ...]``, blocks dense.
            logit_rows: ``[R]`` int64 rows of the T tokens that are wanted; None for all.
            on_layer: called with a layer's index after it.
            adapters: ``[T]`` int32 slots of the projections' adapters, -1 for none, contiguous;
                None: no row has one.
            is_packed: `kv` has its blocks as ``sources/packed_kv.h`` says; see `can_pack`.
            places: for each layer its group, whose block tables are those of `batch.of_group`, and
                its place among the layers of `kv`; None: one group, and all layers in order.
            offsets: ``[num_layers, 2]`` int64 contiguous, elements before K and before V of each
                layer in a block, where heads of layers differ; each ``[block_size, HK, D]``, dense.
            layer_inputs: ``[T, num_layers, W]`` of the dtype of the weights, contiguous, where
                layers are told of tokens.
            cut: looked at before each layer.

        Returns:
            ``[R, hidden]``.

        Raises:
            ValueError: `kv` or `layer_inputs` are another decoder's.
            CutShortError: `cut` was asked.
        """
        num_places = self._decoder.num_layers
        if places is not None:
            assert len(places) == num_places, "each layer has a place"
            num_places = 1 + max(place for _, place in places)
        if offsets is None:
            self._check(kv, batch.block_size, num_places)
        else:
            self._check_mixed(kv, batch.block_size, offsets)
        num_tokens, decoder = len(token_ids), self._decoder
        self._check_inputs(layer_inputs, num_tokens)
        num_wanted = num_tokens if logit_rows is None else len(logit_rows)
        num_rows, shape = max(num_tokens, num_wanted), self._shapes[0]
        attended = qkv = max(layer.output.width for layer in self._kept[0])
        if self._latents is None:
            qkv = max((s.num_heads + 2 * s.num_kv_heads) * s.head_dim for s in self._shapes)
        widths = {
            "residual": decoder.hidden_size,
            "kept": decoder.hidden_size,
            "hidden": decoder.hidden_size,
            "qkv": qkv,
            "attended": attended,
            "inner": self._inner,
            "beside": decoder.hidden_size * decoder.is_parallel,
            "experts_x": decoder.hidden_size * self._has_both,
            "router_x": decoder.hidden_size * self._has_both,
        }
        room = {
            name: torch.empty(num_rows, width, dtype=self._dtype) for name, width in widths.items()
        }
        positions = positions.to(torch.int32)
        wanted, shrunk = adapters, None
        if adapters is not None:
            num_slots, shrunk_width = self._adapter_room()
            check_adapters(adapters, num_tokens, num_slots)
            wanted = adapters if logit_rows is None else adapters.index_select(0, logit_rows)
            shrunk = torch.empty(num_rows, shrunk_width, dtype=torch.float32)
        experts_room = room_of(
            max(
                (self._library.experts_bytes(x.structure, num_rows) for x in self._experts),
                default=0,
            )
        )
        latents_room = room_of(
            0
            if self._latents is None
            else self._library.latents_bytes(self._latents.structure, shape, num_tokens)
        )
        num_seqs = len(batch.seqlens_q_host)
        logit_cu_seqlens = torch.empty(num_seqs + 1, dtype=torch.int32)
        logit_positions = None if logit_rows is None else positions.index_select(0, logit_rows)
        num_groups = 1 if places is None else 1 + max(group for group, _ in places)
        batches = [batch.of_group(group) for group in range(num_groups)]
        slots = [each.slot_mapping.to(torch.int64) for each in batches]
        structures = (Batch * num_groups)(
            *(
                Batch(
                    cu_seqlens_q=each.cu_seqlens_q.data_ptr(),
                    context_lens=each.context_lens.data_ptr(),
                    block_tables=each.block_tables.data_ptr(),
                    table_stride=each.block_tables.stride(0),
                    slot_mapping=slot_mapping.data_ptr(),
                    num_seqs=num_seqs,
                    num_tokens=num_tokens,
                    block_size=each.block_size,
                    block_stride=kv.stride(2),
                    cache_kind=CACHE_KINDS.get(kv.dtype, 0),
                    is_packed=is_packed,
                )
                for each, slot_mapping in zip(batches, slots, strict=True)
            )
        )
        layer_places = None if places is None else torch.tensor(places, dtype=torch.int32)
        step = Step(
            batch=structures[0],
            group_batches=structures,
            places=address_of(layer_places),
            offsets=address_of(offsets),
            layer_inputs=address_of(layer_inputs),
            token_ids=token_ids.data_ptr(),
            positions=positions.data_ptr(),
            logit_rows=None if logit_rows is None else logit_rows.data_ptr(),
            num_logit_rows=-1 if logit_rows is None else num_wanted,
            k_cache=kv[0].data_ptr(),
            v_cache=kv[-1].data_ptr(),
            layer_stride=kv.stride(1),
            bundles=(Bundle * (2 * (num_seqs + 1)))(),
            members=(ctypes.c_int32 * (2 * num_seqs))(),
            logit_positions=address_of(logit_positions),
            logit_cu_seqlens=logit_cu_seqlens.data_ptr(),
            adapters=address_of(adapters),
            logit_adapters=address_of(wanted),
            shrunk=address_of(shrunk),
            experts_room=experts_room.data_ptr(),
            latents_room=latents_room.data_ptr(),
            cut=None if cut is None else cut.address,
            **{name: tensor.data_ptr() for name, tensor in room.items()},
        )
        pool = self._library.threads(torch.get_num_threads())
        parts = range(decoder.num_layers) if on_layer else (0,)
        for first in parts:
            end = first + 1 if on_layer else decoder.num_layers
            if self._library.layers(pool, decoder, step, first, end):
                raise CutShortError
            if on_layer:
                on_layer(first)
        return room["hidden"][:num_wanted]

    def _adapter_room(self) -> tuple[int, int]:
        """Return the slots that every adapted projection has, and the widest shrunk row."""
        linears = [linear for layer in self._kept[0] for linear in layer.adaptable]
        loras = [linear.lora for linear in linears if linear.lora is not None]
        slots = min((lora.num_slots for lora in loras), default=0)
        return slots, max((lora.shrunk_width for lora in loras), default=0)

    def _check(self, kv: torch.Tensor, block_size: int, num_layers: int) -> None:
        (shape,) = self._shapes
        inner = (block_size, shape.num_kv_heads, shape.head_dim)
        expected = (
            2 if self._latents is None else 1,
            num_layers,
            kv.shape[2],
            *inner,
        )
        dense = (shape.num_kv_heads * shape.head_dim, shape.head_dim, 1)
        has_dtype = self._has_dtype(kv)
        if kv.shape != expected or not has_dtype or kv.stride()[3:] != dense:
            raise ValueError(
                f"kv: expected {self._dtype} {expected} with dense blocks, "
                f"got {kv.dtype} {tuple(kv.shape)} with strides {kv.stride()}"
            )

    def _check_mixed(self, kv: torch.Tensor, block_size: int, offsets: torch.Tensor) -> None:
        layers = offsets.tolist()
        widths = [block_size * s.num_kv_heads * s.head_dim for s in self._layer_shapes()]
        end = max(max(k, v) + width for (k, v), width in zip(layers, widths, strict=True))
        if kv[0, 0, 0].numel() < end or not kv.is_contiguous() or not self._has_dtype(kv):
            raise ValueError(
                f"kv: expected {self._dtype} [1, 1, blocks, ...] with at least {end} elements of a "
                f"block, contiguous, got {kv.dtype} {tuple(kv.shape)} with strides {kv.stride()}"
            )

    def _check_inputs(self, inputs: torch.Tensor | None, num_tokens: int) -> None:
        expected = (num_tokens, self._decoder.num_layers, self._told_width)
        if inputs is None and not self._told_width:
            return
        is_ours = inputs is not None and inputs.shape == expected and inputs.dtype is self._dtype
        if inputs is None or not is_ours or not inputs.is_contiguous():
            found = None if inputs is None else f"{inputs.dtype} {tuple(inputs.shape)}"
            raise ValueError(
                f"layer_inputs: expected {self._dtype} {expected}, contiguous, got {found}"
            )

    def _layer_shapes(self) -> list[AttentionShape]:
        return [layer.shape.contents for layer in self._layers]

    def _has_dtype(self, kv: torch.Tensor) -> bool:
        return kv.dtype is self._dtype or (kv.dtype in CACHE_KINDS and self._has_scales)


def _heads(layer: LayerWeights) -> tuple[int, int] | None:
    """Return HK and D of a layer that has heads of its own."""
    attention = layer.attention
    if isinstance(attention, PackedLatents) or not attention.head_dim:
        return None
    return attention.num_kv_heads, attention.head_dim
