"""Multi-head latent attention of one layer (DeepSeek): the cache holds a latent, not K and V.

Knows weights, rotations and the KV cache of its layer. Knows nothing of residuals. See DeepSeek-AI,
"DeepSeek-V2", 2024, arXiv:2405.04434, and ADR 37.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagoda_engine.models.description import LatentDescription
from pagoda_engine.models.linear import Linear
from pagoda_engine.models.norm import Norm
from pagoda_kernels import AttentionBatch, apply_rope, mla_decode, write_latent


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
        """Return ``[T, H * value]`` for what `write` returned."""
        shape = self.shape
        plain_q, turned_q = q.split_with_sizes((shape.nope_dim, shape.rope_dim), 2)
        k_up, v_up = self.kv_up.split_with_sizes((shape.nope_dim, shape.value_dim), 1)
        absorbed = torch.bmm(plain_q.transpose(0, 1), k_up).transpose(0, 1)  # [T, H, R]
        attended = mla_decode(
            torch.cat((absorbed, turned_q), 2),
            cache[0][:, :, 0],
            batch,
            scale=self.scale,
            kv_lora_rank=shape.kv_rank,
        )
        values = torch.bmm(attended.transpose(0, 1), v_up.transpose(1, 2))  # [H, T, value]
        return values.transpose(0, 1).reshape(len(q), -1)
