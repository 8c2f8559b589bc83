"""Readable twin of the adapters: one token at a time, in fp32."""

import torch


def add_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    adapters: torch.Tensor,
    ranks: torch.Tensor,
    scales: torch.Tensor,
) -> torch.Tensor:
    """One token at a time; the sum is returned, `out` is left alone."""
    total = out.float().clone()
    for token, adapter in enumerate(adapters.tolist()):
        if adapter >= 0:
            rank = int(ranks[adapter])
            shrunk = a[adapter, :rank].float() @ x[token].float()
            total[token] += scales[adapter] * (b[adapter, :, :rank].float() @ shrunk)
    return total.to(out.dtype)
