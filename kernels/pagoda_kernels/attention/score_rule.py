"""How one layer turns query-key products into scores: the arguments every attention path shares."""

from dataclasses import dataclass, field

import torch

from pagoda_kernels.checks import check_scale


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """Scale, visibility and bound of attention scores, and the scales of a quantised cache.

    Attributes:
        scale: factor of the products, > 0, usually ``D ** -0.5``.
        window: tokens a query sees, itself included; None for all before it.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for unbounded.
        sinks: ``[H]`` score of a key without a value, seen by every query; None for no such key.
        k_scale: ``[1]`` or ``[HK]`` fp32 > 0, cached K times this is K; None for a cache as q.
        v_scale: as `k_scale`, for V.
        alibi_slopes: ``[H]`` fp32; a score, capped, grows by its head's slope times the distance
            from the query to the key, which is 0 or less; None for no such term.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = field(default=None, compare=False)
    k_scale: torch.Tensor | None = field(default=None, compare=False)
    v_scale: torch.Tensor | None = field(default=None, compare=False)
    alibi_slopes: torch.Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError for a scale, window or cap that would turn, hide or zero everything."""
        check_scale(self.scale)
        if self.window is not None and self.window < 1:
            raise ValueError(f"sliding_window: expected >= 1, got {self.window}")
        if self.sinks is not None and self.alibi_slopes is not None:
            raise ValueError("sinks, alibi_slopes: expected one of them at most, got both")
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise ValueError(f"soft_cap: expected > 0, got {self.soft_cap}")
