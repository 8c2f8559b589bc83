"""Multi-head latent attention of one layer (DeepSeek): the cache holds a latent, not K and V.

Knows weights, rotations and the KV cache of its layer. Knows nothing of residuals. See DeepSeek-AI,
"DeepSeek-V2", 2024, arXiv:2405.04434, and ADR 37.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda_engine.models.description import LatentDescription
from pagoda_engine.models.linear import Linear
from pagoda_engine.models.norm import Norm
from pagoda_kernels import (
    AttentionBatch,
    apply_rope,
    mla_decode,
    mla_prefill,
    plan_varlen,
    select_sequences,
    write_latent,
)

MIN_EXPANDED = 128
"""Fewest new tokens of a sequence that is expanded: each takes launches of its own."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention of H heads over one latent of R dims and one K of P dims for each token.

    With a head's K = W_k c and V = W_v c of the latent c, ``q . K = (W_k^T q) . c``, and the sum of
    weighted V is W_v times that of weighted c: what is cached is read as it is, once for all heads.

    Attributes:
        shape: widths.
        down: ``[Q + R + P, hidden]``: to Q's latent (without one: to Q itself), to that of K and V,
            and to the K that turns.
        q_norm: of Q's latent; None: there is none.
        q_up: ``[H * (nope + P), q_rank]``; None: as `q_norm`.
        kv_norm: of the latent of K and V.
        kv_up: ``[H, nope + value, R]``: of each head the rows of K, then of V.
        output: ``[hidden, H * value]``.
        cos_sin: ``[max_positions, P]`` float32, cosines, then sines.
        is_interleaved: pairs of dims turn that lie side by side.
        scale: factor of the scores.
    """

    shape: LatentDescription
    down: Linear
    q_norm: Norm | None
    q_up: Linear | None
    kv_norm: Norm
    kv_up: torch.Tensor
    output: Linear
    cos_sin: torch.Tensor
    is_interleaved: bool
    scale: float

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Projections, in the order of `adaptable_projections`."""
        up = () if self.q_up is None else (self.q_up,)
        return (self.down, *up, self.output)

    def write(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: Sequence[torch.Tensor],
        slot_mapping: torch.Tensor,
        adapters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the latents of ``[T, hidden]`` to their slots, and return Q ``[T, H, nope + P]``.

        `cache` as `KvCache.layer`; adapters as `Linear`'s.
        """
        shape = self.shape
        down = self.down(hidden, adapters)
        q, latent, k = down.split_with_sizes(
            (down.shape[1] - shape.width, shape.kv_rank, shape.rope_dim), 1
        )
        if self.q_up is not None and self.q_norm is not None:
            q = self.q_up(self.q_norm(q), adapters)
        q = q.view(len(q), len(self.kv_up), shape.head_dim)
        plain_q, turning_q = q.split_with_sizes((shape.nope_dim, shape.rope_dim), 2)
        turned_q, turned_k = apply_rope(
            turning_q, k[:, None], positions, self.cos_sin, interleaved=self.is_interleaved
        )
        write_latent(
            torch.cat((self.kv_norm(latent), turned_k[:, 0]), 1), cache[0][:, :, 0], slot_mapping
        )
        return torch.cat((plain_q, turned_q), 2)

    def attend(
        self, q: torch.Tensor, cache: Sequence[torch.Tensor], batch: AttentionBatch
    ) -> torch.Tensor:
        """Return ``[T, H * value]`` for what `write` returned.

        On CUDA the host waits for nothing; batches of decodes can be captured.
        """
        latents = cache[0][:, :, 0]
        lengths = list(zip(batch.seqlens_q_host, batch.context_lens_host, strict=True))
        is_expanded = [expands(self.shape, new, keys) for new, keys in lengths]
        if not any(is_expanded):
            return self._absorbed(q, latents, batch).flatten(1)
        out = q.new_empty(*q.shape[:2], self.shape.value_dim)
        if not all(is_expanded):
            others, rows = select_sequences(batch, [i for i, e in enumerate(is_expanded) if not e])
            out.index_copy_(0, rows, self._absorbed(q.index_select(0, rows), latents, others))
        start = 0
        for i, (new, keys) in enumerate(lengths):
            own = slice(start, start + new)
            start += new
            if is_expanded[i]:
                blocks = batch.block_tables[i, : -(-keys // batch.block_size)]
                read = latents.index_select(0, blocks).flatten(0, 1)[:keys]
                self._expanded(q[own], read, out[own])
        return out.flatten(1)

    def _absorbed(
        self, q: torch.Tensor, latents: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        """Attend to what is cached, read in place, ``[T, H, value]``."""
        shape = self.shape
        plain_q, turned_q = q.split_with_sizes((shape.nope_dim, shape.rope_dim), 2)
        k_up, v_up = self.kv_up.split_with_sizes((shape.nope_dim, shape.value_dim), 1)
        absorbed = torch.bmm(plain_q.transpose(0, 1), k_up).transpose(0, 1)  # [T, H, R]
        attended = mla_decode(
            torch.cat((absorbed, turned_q), 2),
            latents,
            batch,
            scale=self.scale,
            kv_lora_rank=shape.kv_rank,
        )
        return torch.bmm(attended.transpose(0, 1), v_up.transpose(1, 2)).transpose(0, 1)

    def _expanded(self, q: torch.Tensor, latents: torch.Tensor, out: torch.Tensor) -> None:
        """Attend to K and V made of all latents ``[N, R + P]`` of one sequence; fill `out`."""
        shape = self.shape
        compressed, turned_k = latents.split_with_sizes((shape.kv_rank, shape.rope_dim), 1)
        lengths = plan_varlen(seqlens_q=[len(q)], seqlens_k=[len(latents)], device=q.device)
        count = heads_at_once(shape, len(self.kv_up), len(q), len(latents))
        for first in range(0, len(self.kv_up), count):
            heads = slice(first, first + count)
            kv = F.linear(compressed, self.kv_up[heads].flatten(0, 1)).view(len(latents), count, -1)
            k, v = kv.split_with_sizes((shape.nope_dim, shape.value_dim), 2)
            k = torch.cat((k, turned_k[:, None].expand(-1, count, -1)), 2)
            out[:, heads] = mla_prefill(q[:, heads], k, v, lengths, scale=self.scale)


def expands(shape: LatentDescription, num_new: int, num_keys: int) -> bool:
    """Whether to make K and V of a sequence's latents takes less arithmetic than to absorb.

    Absorbed, a query and a key take the latent's width, not a head's, and each query is taken to
    the latent and back; expanded, each key is. See ADR 37.
    """
    if num_new < MIN_EXPANDED or shape.head_dim < max(16, shape.value_dim):  # as kernels need it
        return False
    num_pairs = num_new * num_keys - num_new * (num_new - 1) // 2
    up = shape.kv_rank * (shape.nope_dim + shape.value_dim)
    absorbed = num_pairs * (shape.width + shape.kv_rank) + num_new * up
    expanded = num_pairs * (shape.head_dim + shape.value_dim) + num_keys * up
    return expanded < absorbed


def heads_at_once(shape: LatentDescription, num_heads: int, num_new: int, num_keys: int) -> int:
    """Return of how many heads to hold K and V: they take no more than to absorb would.

    Start-up has measured what that takes. It is a part of `num_heads` by a power of two.
    """
    each = shape.head_dim + shape.nope_dim + shape.value_dim
    room = num_heads * num_new * (shape.width + 2 * shape.kv_rank)
    count = num_heads
    while count % 2 == 0 and count * num_keys * each > room:
        count //= 2
    return count
