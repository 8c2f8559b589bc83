"""The layers of a dense decoder as one native call: see `sources/pagoda.c`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.native.library import SCRATCH_BYTES, native_library
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.packed_lora import check_adapters
from pagoda_kernels.native.structures import AttentionShape, Batch, Decoder, Layer, Step

CACHE_KINDS = {torch.float8_e4m3fn: 1, torch.int8: 2}
"""Of a cache in one byte, as `sources/one_byte.h` numbers them."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer; norms dense, in the dtype of the projections.

    Attributes:
        input_norm: ``[hidden]``.
        post_attention_norm: ``[hidden]``.
        q_norm: ``[D]``, or None without QK norm.
        k_norm: as `q_norm`.
        qkv: rows of Q, then K, then V.
        output: of attention.
        gate_up: with a gate.
        down: back to hidden.
        window: keys a query sees, itself included; None for all.
        k_scale: ``[HK]`` fp32 contiguous, of a cache in one byte, see `write_qkv`; None: there is
            none.
        v_scale: as `k_scale`.
    """

    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    qkv: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    window: int | None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None


class DecoderLayers:
    """Pre-norm, RoPE, grouped-query attention over a paged cache, SwiGLU."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        *,
        embedding: torch.Tensor | PackedLinear,
        final_norm: torch.Tensor,
        cos_sin: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
    ) -> None:
        """Tell the C sources where everything is; keeps it alive."""
        library = native_library()
        assert library is not None, "there are no packed projections without it"
        self._library = library
        self._kept = (tuple(layers), embedding, final_norm, cos_sin)
        self._dtype = embedding.dtype
        self._inner = max(layer.down.width for layer in layers)
        scales = [scale for layer in layers for scale in (layer.k_scale, layer.v_scale)]
        self._has_scales = all(scale is not None for scale in scales)
        self._layers = (Layer * len(layers))(*(_layer(layer) for layer in layers))
        self._decoder = Decoder(
            shape=AttentionShape(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                is_bf16=self._dtype is torch.bfloat16,
            ),
            hidden_size=len(final_norm),
            num_layers=len(layers),
            eps=eps,
            rotary_dim=cos_sin.shape[1],
            cos_sin=cos_sin.data_ptr(),
            embedding=None if isinstance(embedding, PackedLinear) else embedding.data_ptr(),
            tied=embedding.address if isinstance(embedding, PackedLinear) else None,
            final_norm=final_norm.data_ptr(),
            layers=self._layers,
        )

    @property
    def fits(self) -> bool:
        """Whether heads are even, and a thread's scratch memory is enough for them."""
        shape = self._decoder.shape
        return not shape.head_dim % 2 and self._library.scratch_bytes(shape) <= SCRATCH_BYTES

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv: torch.Tensor,
        logit_rows: torch.Tensor | None,
        on_layer: Callable[[int], None] | None = None,
        adapters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the KV of the new tokens and return the last norm's rows.

        Args:
            token_ids: ``[T]`` int64.
            positions: ``[T]``.
            batch: lengths and block tables of the T tokens.
            kv: ``[2, num_layers, num_blocks, block_size, HK, D]``, blocks dense, of the dtype of
                the weights; or float8_e4m3fn or int8, if layers have scales.
            logit_rows: ``[R]`` int64 rows of the T tokens that are wanted; None for all.
            on_layer: called with a layer's index after it.
            adapters: ``[T]`` int32 slots of the projections' adapters, -1 for none, contiguous;
                None: no row has one.

        Returns:
            ``[R, hidden]``.

        Raises:
            ValueError: `kv` is another decoder's.
        """
        self._check(kv, batch.block_size)
        num_tokens, decoder = len(token_ids), self._decoder
        num_wanted = num_tokens if logit_rows is None else len(logit_rows)
        num_rows, shape = max(num_tokens, num_wanted), decoder.shape
        attended = shape.num_heads * shape.head_dim
        qkv = attended + 2 * shape.num_kv_heads * shape.head_dim
        widths = {
            "residual": decoder.hidden_size,
            "kept": decoder.hidden_size,
            "hidden": decoder.hidden_size,
            "qkv": qkv,
            "attended": attended,
            "inner": self._inner,
        }
        room = {
            name: torch.empty(num_rows, width, dtype=self._dtype) for name, width in widths.items()
        }
        positions = positions.to(torch.int32)
        slots = batch.slot_mapping.to(torch.int64)
        wanted, shrunk = adapters, None
        if adapters is not None:
            num_slots, shrunk_width = self._adapter_room()
            check_adapters(adapters, num_tokens, num_slots)
            wanted = adapters if logit_rows is None else adapters.index_select(0, logit_rows)
            shrunk = torch.empty(num_rows, shrunk_width, dtype=torch.float32)
        first_task = torch.empty(len(batch.seqlens_q_host) + 1, dtype=torch.int64)
        step = Step(
            batch=Batch(
                cu_seqlens_q=batch.cu_seqlens_q.data_ptr(),
                context_lens=batch.context_lens.data_ptr(),
                block_tables=batch.block_tables.data_ptr(),
                table_stride=batch.block_tables.stride(0),
                slot_mapping=slots.data_ptr(),
                num_seqs=len(batch.seqlens_q_host),
                num_tokens=num_tokens,
                block_size=batch.block_size,
                block_stride=kv.stride(2),
                cache_kind=CACHE_KINDS.get(kv.dtype, 0),
            ),
            token_ids=token_ids.data_ptr(),
            positions=positions.data_ptr(),
            logit_rows=None if logit_rows is None else logit_rows.data_ptr(),
            num_logit_rows=-1 if logit_rows is None else num_wanted,
            k_cache=kv[0].data_ptr(),
            v_cache=kv[1].data_ptr(),
            layer_stride=kv.stride(1),
            first_task=first_task.data_ptr(),
            adapters=_address(adapters),
            logit_adapters=_address(wanted),
            shrunk=_address(shrunk),
            **{name: tensor.data_ptr() for name, tensor in room.items()},
        )
        pool = self._library.threads(torch.get_num_threads())
        if on_layer is None:
            self._library.layers(pool, decoder, step, 0, decoder.num_layers)
        else:
            for layer in range(decoder.num_layers):
                self._library.layers(pool, decoder, step, layer, layer + 1)
                on_layer(layer)
        return room["hidden"][:num_wanted]

    def _adapter_room(self) -> tuple[int, int]:
        """Return the slots that every adapted projection has, and the widest shrunk row."""
        layers = self._kept[0]
        linears = [x for each in layers for x in (each.qkv, each.output, each.gate_up, each.down)]
        loras = [linear.lora for linear in linears if linear.lora is not None]
        slots = min((lora.num_slots for lora in loras), default=0)
        return slots, max((lora.shrunk_width for lora in loras), default=0)

    def _check(self, kv: torch.Tensor, block_size: int) -> None:
        shape = self._decoder.shape
        inner = (block_size, shape.num_kv_heads, shape.head_dim)
        expected = (2, self._decoder.num_layers, kv.shape[2], *inner)
        dense = (shape.num_kv_heads * shape.head_dim, shape.head_dim, 1)
        has_dtype = kv.dtype is self._dtype or (kv.dtype in CACHE_KINDS and self._has_scales)
        if kv.shape != expected or not has_dtype or kv.stride()[3:] != dense:
            raise ValueError(
                f"kv: expected {self._dtype} {expected} with dense blocks, "
                f"got {kv.dtype} {tuple(kv.shape)} with strides {kv.stride()}"
            )


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _layer(layer: LayerWeights) -> Layer:
    return Layer(
        input_norm=layer.input_norm.data_ptr(),
        post_attention_norm=layer.post_attention_norm.data_ptr(),
        q_norm=None if layer.q_norm is None else layer.q_norm.data_ptr(),
        k_norm=None if layer.k_norm is None else layer.k_norm.data_ptr(),
        qkv=layer.qkv.address,
        output=layer.output.address,
        gate_up=layer.gate_up.address,
        down=layer.down.address,
        window=layer.window or 0,
        k_scale=_address(layer.k_scale),
        v_scale=_address(layer.v_scale),
    )
