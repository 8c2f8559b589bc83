"""How one layer turns query-key products into scores: the arguments every attention path shares."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """Scale, visibility and bound of attention scores.

    Attributes:
        scale: factor of the products, usually ``D ** -0.5``.
        window: tokens a query sees, itself included; None for all before it.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; None for unbounded.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a window or cap that would hide or zero everything."""
        if self.window is not None and self.window < 1:
            raise ValueError(f"sliding_window: expected >= 1, got {self.window}")
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise ValueError(f"soft_cap: expected > 0, got {self.soft_cap}")
