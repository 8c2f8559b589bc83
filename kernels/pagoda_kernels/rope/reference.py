"""Readable twin of the rotation, in both forms."""

import torch


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers: ``x * cos + rotate_half(x) * sin`` on the first R dims, in fp32."""
    rot_dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions.long()][:, None].chunk(2, -1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        wide, passed = x[..., :rot_dim].float(), x[..., rot_dim:]
        first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
        return torch.cat([joined.to(x.dtype), passed], -1)

    return rotate(q), rotate(k)
