"""A random decoder, plain and as one native call, and the steps of sequences that it takes."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pagoda_kernels import (
    apply_rope,
    paged_attention,
    plan_attention,
    rms_norm,
    write_latent,
    write_qkv,
)
from pagoda_kernels.attention import reference as attention_reference
from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.gate import reference as gate_reference
from pagoda_kernels.moe import reference as moe_reference
from pagoda_kernels.native.decoder_layers import DecoderLayers, NormKind
from pagoda_kernels.native.layer_weights import LayerWeights, PackedAttention, QkNormPlace
from pagoda_kernels.native.packed_experts import PackedExperts, PackedFeedForward, PackedRouter
from pagoda_kernels.native.packed_latents import LatentsShape, PackedLatents
from pagoda_kernels.native.packed_linear import Activation, PackedLinear
from pagoda_kernels.native.quantised_weight import Bits, quantise
from pagoda_kernels.one_byte_dtypes import LARGEST

CPU = torch.device("cpu")
NUM_BLOCKS, VOCAB = 160, 50


@dataclass(frozen=True)
class Shape:
    """A decoder, and how its tokens are laid out."""

    hidden: int = 64
    inner: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    windows: tuple[int | None, ...] = (None, None)
    has_qk_norm: bool = False
    rotary_dim: int | None = None
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    bits: Bits | None = None
    is_tied: bool = False
    num_experts: int = 0  # of every layer but the first
    per_row: int = 2
    has_shared: bool = False
    has_sinks: bool = False
    latents: LatentsShape | None = None
    q_rank: int = 0  # with latents; 0: Q is made of the residual
    is_interleaved: bool = True
    unturned: frozenset[int] = frozenset()  # layers
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    has_norms_before: bool = True  # of attention and the feed-forward part
    has_norms_after: bool = False
    qk_norm_place: QkNormPlace = "head"
    clip: float | None = None
    norm: NormKind = "rms"
    gate: Activation = "silu"  # or of the dense part, without a gate
    is_gated: bool = True
    is_parallel: bool = False
    has_one_norm: bool = False  # a parallel block
    has_position_table: bool = False
    has_embedding_norm: bool = False
    has_alibi: bool = False
    soft_cap: float | None = None
    cache_dtype: torch.dtype | None = None  # in one byte; None: `dtype`

    @property
    def has_second_norm(self) -> bool:
        """Whether the feed-forward part has one before it."""
        return self.has_norms_before and not self.has_one_norm

    @property
    def kv_shape(self) -> tuple[int, ...]:
        """Planes, layers, blocks, and what a block has."""
        size = len(self.windows), NUM_BLOCKS, self.block_size
        if self.latents is not None:
            return 1, *size, 1, self.latents.width
        return 2, *size, self.num_kv_heads, self.head_dim


class Model:
    """Random weights, plain (what quantised ones stand for) and packed."""

    def __init__(self, shape: Shape) -> None:
        self.shape, dtype = shape, shape.dtype
        qkv_rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        attended = shape.num_heads * shape.head_dim
        q_norm_heads, k_norm_heads = shape.num_heads, shape.num_kv_heads
        if shape.qk_norm_place == "head":
            q_norm_heads = k_norm_heads = 1
        latents = shape.latents or LatentsShape(0, 0, 0, 0)
        if shape.latents is not None:
            attended = shape.num_heads * latents.value_dim
            q_rows = shape.num_heads * (latents.nope_dim + latents.rope_dim)
            qkv_rows = (shape.q_rank or q_rows) + latents.width

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return (torch.randn(rows, columns) / columns**0.5).to(dtype)

        def norm(width: int) -> torch.Tensor:
            if shape.norm == "layer":
                return torch.stack((1 + 0.1 * torch.randn(width), torch.randn(width))).to(dtype)
            return ((shape.norm == "rms") + 0.1 * torch.randn(width)).to(dtype)

        def head_norm(heads: int) -> torch.Tensor:
            size = (heads, 2, shape.head_dim)
            if shape.qk_norm_place != "each_head":
                size = (heads * shape.head_dim,)
            return ((shape.norm != "rms_unit_offset") + 0.1 * torch.randn(size)).to(dtype)

        self.embedding = torch.randn(VOCAB, shape.hidden).to(dtype)
        self.final_norm = norm(shape.hidden)
        table = torch.randn(600, shape.hidden).to(dtype)
        self.position_table = table if shape.has_position_table else None
        self.embedding_norm = norm(shape.hidden) if shape.has_embedding_norm else None
        self.slopes = torch.rand(shape.num_heads) if shape.has_alibi else None
        angles = torch.outer(torch.arange(600.0), torch.rand(self.rotary_dim // 2))
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
        self.plain = [
            {
                **{
                    name: norm(shape.hidden) if is_there else None
                    for name, is_there in (
                        ("input_norm", shape.has_norms_before),
                        ("post_attention_norm", shape.has_second_norm),
                        ("attention_out_norm", shape.has_norms_after),
                        ("feed_forward_out_norm", shape.has_norms_after),
                    )
                },
                "q_norm": head_norm(q_norm_heads) if shape.has_qk_norm else None,
                "k_norm": head_norm(k_norm_heads) if shape.has_qk_norm else None,
                "qkv": matrix(qkv_rows, shape.hidden),
                "output": matrix(shape.hidden, attended),
                "gate_up": matrix((1 + shape.is_gated) * shape.inner, shape.hidden),
                "down": matrix(shape.hidden, shape.inner),
                "q_latent_norm": norm(shape.q_rank) if shape.q_rank else None,
                "q_up": matrix(q_rows, shape.q_rank) if shape.q_rank else None,
                "kv_latent_norm": norm(latents.kv_rank),
                "kv_up": torch.stack(
                    [
                        matrix(latents.nope_dim + latents.value_dim, latents.kv_rank)
                        for _ in range(shape.num_heads)
                    ]
                ),
                "sinks": torch.randn(shape.num_heads) if shape.has_sinks else None,
                "k_scale": self.random_scale(),
                "v_scale": self.random_scale(),
                "router": matrix(shape.num_experts, shape.hidden) if has_experts else None,
                "experts_up": [matrix(2 * shape.inner, shape.hidden) for _ in range(has_experts)],
                "experts_down": [matrix(shape.hidden, shape.inner) for _ in range(has_experts)],
            }
            for has_experts in (0, *[shape.num_experts] * (len(shape.windows) - 1))
        ]
        self.native = DecoderLayers(
            [
                LayerWeights(
                    input_norm=w["input_norm"],
                    attention=self.attention(w, window),
                    output=PackedLinear(w["output"], bits=shape.bits),
                    post_attention_norm=w["post_attention_norm"],
                    cos_sin=self.turning(i),
                    feed_forward=self.feed_forward(w),
                    attention_out_norm=w["attention_out_norm"],
                    feed_forward_out_norm=w["feed_forward_out_norm"],
                )
                for i, (w, window) in enumerate(zip(self.plain, shape.windows, strict=True))
            ],
            embedding=PackedLinear(self.embedding) if shape.is_tied else self.embedding,
            final_norm=self.final_norm,
            num_heads=shape.num_heads,
            num_kv_heads=shape.kv_shape[-2],
            head_dim=shape.kv_shape[-1],
            scale=self.scale,
            eps=1e-5,
            embedding_multiplier=shape.embedding_multiplier,
            residual_multiplier=shape.residual_multiplier,
            norm=shape.norm,
            soft_cap=shape.soft_cap,
            is_parallel=shape.is_parallel,
            position_table=self.position_table,
            embedding_norm=self.embedding_norm,
            alibi_slopes=self.slopes,
        )
        assert not self.native.misfit
        if shape.bits is not None:
            for w in self.plain:
                for name in ("qkv", "output", "gate_up", "down", "q_up"):
                    w[name] = None if w[name] is None else self.held(w[name])
                for name in ("experts_up", "experts_down"):
                    w[name] = [self.held(weight) for weight in w[name]]

    def held(self, weight: torch.Tensor) -> torch.Tensor:
        """What is multiplied with: what codes stand for."""
        bits = self.shape.bits
        return weight if bits is None else quantise(weight, bits).dequantised(weight.dtype)

    def feed_forward(self, w: dict[str, Any]) -> PackedFeedForward | PackedExperts:
        bits, shape = self.shape.bits, self.shape

        def packed(up: torch.Tensor, down: torch.Tensor) -> PackedFeedForward:
            return PackedFeedForward(
                PackedLinear(up, is_gated=True, gate=shape.gate, bits=bits)
                if shape.is_gated
                else PackedLinear(up, activation=shape.gate, bits=bits),
                PackedLinear(down, bits=bits),
            )

        dense = packed(w["gate_up"], w["down"])
        if w["router"] is None:
            return dense
        router = PackedRouter(
            PackedLinear(w["router"]), per_row=shape.per_row, is_sigmoid=False, renormalise=True
        )
        experts = [packed(*pair) for pair in zip(w["experts_up"], w["experts_down"], strict=True)]
        return PackedExperts(router, experts, shared=dense if shape.has_shared else None)

    def fed(self, hidden: torch.Tensor, w: dict[str, Any]) -> torch.Tensor:
        shape = self.shape
        dense = F.linear(self.activated(F.linear(hidden, w["gate_up"])), w["down"])
        if w["router"] is None:
            return dense
        weights, experts = moe_reference.route_topk(
            F.linear(hidden, w["router"]), shape.per_row, renormalise=True
        )
        up, down = torch.stack(w["experts_up"]), torch.stack(w["experts_down"])
        routed = moe_reference.fused_moe(hidden, up, down, weights, experts)
        return routed + dense if shape.has_shared else routed

    def activated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate = self.shape.gate
        if not self.shape.is_gated:
            of_gelu = "tanh" if gate == "gelu_tanh" else "none"
            return F.silu(gate_up) if gate == "silu" else F.gelu(gate_up, approximate=of_gelu)
        if gate == "silu":
            return gate_reference.silu_mul(gate_up)
        return gate_reference.gelu_mul(gate_up, "tanh" if gate == "gelu_tanh" else "none")

    def turning(self, layer: int) -> torch.Tensor | None:
        return None if layer in self.shape.unturned else self.cos_sin

    @property
    def scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    def attention(self, w: dict[str, Any], window: int | None) -> PackedAttention | PackedLatents:
        shape, qkv = self.shape, PackedLinear(w["qkv"], bits=self.shape.bits)
        if shape.latents is None:
            norms = {name: w[name] for name in ("q_norm", "k_norm")}
            return PackedAttention(
                qkv=qkv,
                **norms,
                window=window,
                sinks=w["sinks"],
                qk_norm_place=shape.qk_norm_place,
                clip=shape.clip,
                k_scale=w["k_scale"],
                v_scale=w["v_scale"],
            )
        return PackedLatents(
            shape.latents,
            down=qkv,
            q_norm=w["q_latent_norm"],
            q_up=None if w["q_up"] is None else PackedLinear(w["q_up"], bits=shape.bits),
            kv_norm=w["kv_latent_norm"],
            kv_up=w["kv_up"],
            is_interleaved=shape.is_interleaved,
            eps=1e-5,
        )

    @property
    def rotary_dim(self) -> int:
        if self.shape.latents is not None:
            return self.shape.latents.rope_dim
        return self.shape.rotary_dim or self.shape.head_dim

    def random_scale(self) -> torch.Tensor | None:
        """Of each head another; the largest values are beyond what it reaches, and cut off."""
        if self.shape.cache_dtype is None:
            return None
        largest = LARGEST[self.shape.cache_dtype]
        return 1.5 / largest * (1 + torch.rand(self.shape.num_kv_heads))

    def new_cache(self) -> torch.Tensor:
        """Blocks that nobody has written: NaN, or the largest codes."""
        shape = self.shape
        if shape.cache_dtype is not None:
            return torch.full(shape.kv_shape, LARGEST[shape.cache_dtype]).to(shape.cache_dtype)
        return torch.full(shape.kv_shape, float("nan"), dtype=shape.dtype)

    def attended(
        self, hidden: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch,
        kv: torch.Tensor, i: int,
    ) -> torch.Tensor:  # fmt: skip
        shape, w = self.shape, self.plain[i]
        if shape.latents is not None:
            return self.attended_latents(hidden, positions, batch, kv[0, i, :, :, 0], w)
        q_norm, k_norm, qkv = w["q_norm"], w["k_norm"], F.linear(hidden, w["qkv"])
        if shape.has_qk_norm and (shape.qk_norm_place != "head" or shape.norm != "rms"):
            kv_width = shape.num_kv_heads * shape.head_dim
            q, k, v = qkv.split_with_sizes((qkv.shape[1] - 2 * kv_width, kv_width, kv_width), 1)
            q, k = self.normed_heads(q, q_norm), self.normed_heads(k, k_norm)
            q_norm, k_norm, qkv = None, None, torch.cat((q, k, v), 1)
        if shape.clip is not None:
            qkv = qkv.clamp(-shape.clip, shape.clip)
        q = write_qkv(
            qkv,
            positions,
            self.turning(i),
            kv[0, i],
            kv[1, i],
            batch.slot_mapping,
            num_heads=shape.num_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=1e-5,
            k_scale=w["k_scale"],
            v_scale=w["v_scale"],
        )
        return paged_attention(
            q, kv[0, i], kv[1, i], batch,
            scale=self.scale, sliding_window=shape.windows[i], sinks=w["sinks"],
            k_scale=w["k_scale"], v_scale=w["v_scale"], soft_cap=shape.soft_cap,
            alibi_slopes=self.slopes,
        ).flatten(1)  # fmt: skip

    def attended_latents(
        self, hidden: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch,
        cache: torch.Tensor, w: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        latents, num_heads = self.shape.latents, self.shape.num_heads
        assert latents is not None
        down = F.linear(hidden, w["qkv"])
        widths = down.shape[1] - latents.width, latents.kv_rank, latents.rope_dim
        q, latent, k = down.split_with_sizes(widths, 1)
        if w["q_up"] is not None:
            q = F.linear(rms_norm(q.contiguous(), w["q_latent_norm"], 1e-5), w["q_up"])
        q = q.reshape(len(q), num_heads, -1)
        plain, turning = q.split_with_sizes((latents.nope_dim, latents.rope_dim), 2)
        turned, turned_k = apply_rope(
            turning, k[:, None], positions, self.cos_sin, interleaved=self.shape.is_interleaved
        )
        latent = rms_norm(latent.contiguous(), w["kv_latent_norm"], 1e-5)
        write_latent(torch.cat((latent, turned_k[:, 0]), 1), cache, batch.slot_mapping)
        k_up, v_up = w["kv_up"].split_with_sizes((latents.nope_dim, latents.value_dim), 1)
        absorbed = torch.einsum("thn,hnr->thr", plain, k_up)
        found = attention_reference.mla_decode(
            torch.cat((absorbed, turned), 2), cache, batch,
            scale=self.scale, kv_lora_rank=latents.kv_rank,
        )  # fmt: skip
        return torch.einsum("thr,hvr->thv", found, v_up).flatten(1)

    def by_torch(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, kv: torch.Tensor
    ) -> torch.Tensor:
        factor = self.shape.residual_multiplier
        residual = F.embedding(ids, self.embedding) * self.shape.embedding_multiplier
        if self.position_table is not None:
            residual = residual + self.position_table[positions]
        residual = self.normed(residual, self.embedding_norm)
        for i, w in enumerate(self.plain):
            hidden = self.normed(residual, w["input_norm"])
            added = F.linear(self.attended(hidden, positions, batch, kv, i), w["output"])
            added = self.normed(added, w["attention_out_norm"]) * factor
            if self.shape.is_parallel:
                if w["post_attention_norm"] is not None:
                    hidden = self.normed(residual, w["post_attention_norm"])
                fed = self.normed(self.fed(hidden, w), w["feed_forward_out_norm"])
                residual = residual + (added + fed * factor)
                continue
            residual = residual + added
            added = self.fed(self.normed(residual, w["post_attention_norm"]), w)
            residual = residual + self.normed(added, w["feed_forward_out_norm"]) * factor
        return self.normed(residual, self.final_norm)

    def normed(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if weight is None:
            return x
        if self.shape.norm == "layer":
            return F.layer_norm(x, x.shape[-1:], *weight, 1e-5)
        return rms_norm(x, weight, 1e-5, unit_offset=self.shape.norm == "rms_unit_offset")

    def normed_heads(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.dim() == 1:
            rows, offset = x.unflatten(1, (-1, len(weight))), self.shape.norm == "rms_unit_offset"
            return rms_norm(rows, weight, 1e-5, unit_offset=offset).flatten(1)
        heads = x.unflatten(1, (len(weight), -1)).float()
        normed = F.layer_norm(heads, heads.shape[-1:], eps=1e-5)
        return (normed * weight[:, 0] + weight[:, 1]).to(x.dtype).flatten(1)


class Sequences:
    """Token ids and blocks of some sequences; what each has computed."""

    def __init__(self, model: Model, lengths: list[int], *, shared: int = 0) -> None:
        """Make them; all but the last begin with `shared` tokens of the first, in its blocks."""
        self.model = model
        self.ids = [torch.randint(VOCAB, (n,)) for n in lengths]
        free = torch.randperm(NUM_BLOCKS).tolist()
        size = model.shape.block_size
        self.tables: list[list[int]] = []
        for s, ids in enumerate(self.ids):
            same = shared // size if 0 < s < len(lengths) - 1 else 0
            ids[: same * size] = self.ids[0][: same * size]
            own = [free.pop() for _ in range(-(-len(ids) // size) - same)]
            self.tables.append([*(self.tables[0][:same] if same else ()), *own])

    def step(
        self, parts: list[tuple[int, int, int]], kv: torch.Tensor, *, by_torch: bool = False,
        rows: torch.Tensor | None = None, is_packed: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Compute tokens [first, end) of sequence s for every (s, first, end)."""
        ids = torch.cat([self.ids[s][first:end] for s, first, end in parts])
        positions = torch.cat([torch.arange(first, end) for _, first, end in parts]).int()
        batch = plan_attention(
            seqlens_q=[end - first for _, first, end in parts],
            context_lens=[end for _, _, end in parts],
            block_tables=[self.tables[s] for s, _, _ in parts],
            block_size=self.model.shape.block_size,
            device=CPU,
        )
        if by_torch:
            if self.model.shape.cache_dtype is None:
                kv.nan_to_num_()
            return self.model.by_torch(ids, positions, batch, kv)
        return self.model.native.hidden(ids, positions, batch, kv, rows, is_packed=is_packed)
