"""Readable twin of the rotation, in every form."""

from collections.abc import Sequence

import torch


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One rotated pair of dims at a time."""
    half = cos_sin.shape[1] // 2
    axis_of = [axis for axis, size in enumerate(sections or [half]) for _ in range(size)]
    places = positions.long().reshape(len(sections or [half]), -1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        for i in range(half):
            angles = cos_sin[places[axis_of[i]]]
            cos, sin = angles[:, i, None], angles[:, half + i, None]
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
            a, b = x[..., first].float(), x[..., second].float()
            out[..., first] = (a * cos - b * sin).to(x.dtype)
            out[..., second] = (b * cos + a * sin).to(x.dtype)
        return out

    return rotate(q), rotate(k)
