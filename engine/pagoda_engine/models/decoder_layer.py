"""One layer: attention, feed-forward part, and the norms and sums around them.

Knows weights. Knows nothing of embeddings or logits.
"""

from dataclasses import dataclass

import torch

from pagoda_engine.models.attention import Attention
from pagoda_engine.models.embeddings.layer_inputs import LayerInput
from pagoda_engine.models.feed_forward import DenseAndExperts, DenseFeedForward, Experts
from pagoda_engine.models.latent_attention import LatentAttention
from pagoda_engine.models.norm import Norm, add_normed


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; the places of its norms are those of `WeightNames`.

    Attributes:
        attention_in_norm: None: attention reads the residual as it is.
        attention: its weights.
        attention_out_norm: None: what attention returns is added as it is.
        feed_forward_in_norm: None: as `attention_in_norm`; in a parallel block: what attention
            reads is read.
        feed_forward: dense or experts, or both.
        feed_forward_out_norm: as `attention_out_norm`.
        is_parallel: the feed-forward part reads the residual that attention read.
        multiplier: of all that is added to the residual.
        layer_input: what it adds to the residual at its end, of what it is told of the token; None:
            it is told nothing.
        scalar: ``[1]``, of the residual after the layer; None: it goes on as it is.
    """

    attention_in_norm: Norm | None
    attention: Attention | LatentAttention
    attention_out_norm: Norm | None
    feed_forward_in_norm: Norm | None
    feed_forward: DenseFeedForward | Experts | DenseAndExperts
    feed_forward_out_norm: Norm | None
    is_parallel: bool
    multiplier: float
    layer_input: LayerInput | None = None
    scalar: torch.Tensor | None = None

    def finish(
        self,
        attended: torch.Tensor,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        next_norm: Norm | None,
        adapters: torch.Tensor | None = None,
        inputs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add both parts to the residual.

        Args:
            attended: ``[T, H * D]``, what attention found.
            hidden: ``[T, hidden]``, what it read; only a parallel block needs it.
            residual: ``[T, hidden]``, not changed.
            next_norm: of the next layer, or the last norm.
            adapters: of each row, as `Linear`'s.
            inputs: ``[T, W]``, for `layer_input`.

        Returns:
            The new residual normed, and that itself.
        """
        added = self._added(self.attention.output(attended, adapters), self.attention_out_norm)
        if not self.is_parallel:
            hidden, residual = add_normed(self.feed_forward_in_norm, added, residual)
            fed = self._fed(hidden, residual, adapters)
            added = self._added(fed, self.feed_forward_out_norm)
            return self._left(next_norm, added, residual, inputs)
        if self.feed_forward_in_norm is not None:
            hidden = self.feed_forward_in_norm(residual)
        fed = self._fed(hidden, residual, adapters)
        added = added + self._added(fed, self.feed_forward_out_norm)
        return self._left(next_norm, added, residual, inputs)

    def _left(
        self,
        next_norm: Norm | None,
        added: torch.Tensor,
        residual: torch.Tensor,
        inputs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the layer leaves behind, normed, and that itself."""
        if self.layer_input is not None:
            assert inputs is not None, "the decoder has some for every layer"
            residual = residual + added
            added = self.layer_input(residual, inputs)
        if self.scalar is None:
            return add_normed(next_norm, added, residual)
        residual = (residual + added) * self.scalar
        return residual if next_norm is None else next_norm(residual), residual

    def _fed(
        self, hidden: torch.Tensor, residual: torch.Tensor, adapters: torch.Tensor | None
    ) -> torch.Tensor:
        if isinstance(self.feed_forward, DenseFeedForward):
            return self.feed_forward(hidden, adapters)
        if isinstance(self.feed_forward, DenseAndExperts):
            return self.feed_forward(hidden, residual, adapters)
        return self.feed_forward(hidden)  # experts have no adapters

    def _added(self, x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        x = x if norm is None else norm(x)
        return x if self.multiplier == 1 else x * self.multiplier
