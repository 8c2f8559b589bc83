"""Attention of one layer: from the residual's rows to heads, and back.

Knows weights, rotations and the KV cache of its layer. Knows nothing of residuals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagoda_engine.models.kv.scales import KvScales
from pagoda_engine.models.linear import Linear
from pagoda_engine.models.norm import Norm, RmsNorm
from pagoda_kernels import AttentionBatch, apply_rope, paged_attention, write_qkv
from pagoda_kernels.one_byte_dtypes import LARGEST


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Norms of Q and K before the rotation.

    Attributes:
        q: of Q.
        k: of K.
        is_joined: over all heads at once; else over every head.
    """

    q: Norm
    k: Norm
    is_joined: bool

    @property
    def weights(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Weights ``[D]`` for `write_qkv`, if that has this norm."""
        q, k = self.q, self.k
        if self.is_joined or not (isinstance(q, RmsNorm) and isinstance(k, RmsNorm)):
            return None
        return None if q.unit_offset else (q.weight, k.weight)


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over a paged cache.

    Attributes:
        qkv: ``[(H + 2 * HK) * D, hidden]``, rows of Q, then K, then V; of Q alone if there is no
            `has_kv`.
        qk_norm: None: there is none.
        output: ``[hidden, H * D]``.
        cos_sin: ``[max_positions, R]`` float32, cosines, then sines, R <= D; None: no rotation.
        num_heads: H.
        scale: factor of the scores.
        window: keys a query sees, itself included; None for all.
        soft_cap: bound of the scores; None: there is none.
        alibi_slopes: ``[H]`` float32, see `paged_attention`; None: no ALiBi.
        sinks: ``[H]``, see `paged_attention`; None: there are none.
        clip: bound of absolute values of Q, K and V; None: there is none.
        eps: of `qk_norm`.
        kv_scales: of a cache in one byte; None: there is none.
        has_kv: it makes K and V; else it attends to those of an earlier layer.
        is_v_normed: V is RMS-normed over each head, without a weight.
    """

    qkv: Linear
    qk_norm: QkNorm | None
    output: Linear
    cos_sin: torch.Tensor | None
    num_heads: int
    scale: float
    window: int | None
    soft_cap: float | None
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    clip: float | None
    eps: float
    kv_scales: KvScales | None = None
    has_kv: bool = True
    is_v_normed: bool = False

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Projections, in the order of `adaptable_projections`."""
        return self.qkv, self.output

    def write(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: Sequence[torch.Tensor],
        slot_mapping: torch.Tensor,
        adapters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write K and V of ``[T, hidden]`` to their slots, and return Q ``[T, H, D]``.

        Without `has_kv` nothing is written. `cache` as `KvCache.layer`; adapters as `Linear`'s.
        """
        k_cache, v_cache = cache
        qkv = self.qkv(hidden, adapters)
        if not self.has_kv:
            return self._turned(qkv.view(len(qkv), self.num_heads, -1), positions)
        if self.is_v_normed:
            num_kv_heads, head_dim = k_cache.shape[2:]
            v = qkv.view(len(qkv), -1, head_dim)[:, -num_kv_heads:]
            v.copy_(torch.rms_norm(v, (head_dim,), None, self.eps))
        weights = None if self.qk_norm is None else self.qk_norm.weights
        if self.qk_norm is not None and weights is None:
            qkv = self._normed(self.qk_norm, qkv, *k_cache.shape[2:])
        if self.clip is not None:
            qkv = qkv.clamp(-self.clip, self.clip)
        q_norm, k_norm = weights or (None, None)
        k_scale, v_scale = self._scales(k_cache)
        return write_qkv(
            qkv,
            positions,
            self.cos_sin,
            k_cache,
            v_cache,
            slot_mapping,
            num_heads=self.num_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=self.eps,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def _turned(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return ``[T, H, D]`` normed and rotated."""
        if self.qk_norm is not None:
            q = self.qk_norm.q(q)
        if self.cos_sin is None:
            return q
        return apply_rope(q, q[:, :0], positions, self.cos_sin)[0]

    def attend(
        self, q: torch.Tensor, cache: Sequence[torch.Tensor], batch: AttentionBatch
    ) -> torch.Tensor:
        """Return ``[T, H * D]`` for what `write` returned."""
        k_cache, v_cache = cache
        k_scale, v_scale = self._scales(k_cache)
        return paged_attention(
            q,
            k_cache,
            v_cache,
            batch,
            scale=self.scale,
            sliding_window=self.window,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            alibi_slopes=self.alibi_slopes,
            k_scale=k_scale,
            v_scale=v_scale,
        ).view(len(q), -1)

    def _scales(self, k_cache: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return those of K and V for a cache; none for one that is as the activations."""
        if self.kv_scales is None or k_cache.dtype not in LARGEST:
            return None, None
        return self.kv_scales.k, self.kv_scales.v

    def _normed(
        self, norm: QkNorm, qkv: torch.Tensor, num_kv_heads: int, head_dim: int
    ) -> torch.Tensor:
        """Return a copy of `qkv` with Q and K normed, where `write_qkv` cannot."""
        widths = self.num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim
        q, k, v = qkv.split_with_sizes(widths, 1)
        if norm.is_joined:
            return torch.cat((norm.q(q), norm.k(k), v), 1)
        q, k = (x.view(len(x), -1, head_dim) for x in (q, k))
        return torch.cat((norm.q(q).flatten(1), norm.k(k).flatten(1), v), 1)
