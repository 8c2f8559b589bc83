"""Low-rank adapters on the CPU: two matmuls per adapter in use."""

import torch
import torch.nn.functional as F


def add_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    adapters: torch.Tensor,
    ranks: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """As `pagoda_kernels.add_lora`, arguments already checked."""
    all_ranks, all_scales = ranks.tolist(), scales.tolist()
    for adapter in sorted(set(adapters.tolist())):
        if adapter < 0 or all_ranks[adapter] == 0:
            continue
        rank = all_ranks[adapter]
        tokens = (adapters == adapter).nonzero().squeeze(1)
        shrunk = F.linear(x.index_select(0, tokens), a[adapter, :rank])
        added = F.linear(shrunk, b[adapter, :, :rank])
        out.index_add_(0, tokens, added, alpha=all_scales[adapter])
