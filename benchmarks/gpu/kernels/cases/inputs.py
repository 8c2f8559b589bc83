"""Random inputs and error measures the bench files share: every tensor fresh, none of zeros."""

from dataclasses import dataclass

import torch

from pagoda_kernels import AttentionBatch, plan_attention


@dataclass(frozen=True)
class PagedCase:
    """One layer's inputs of `paged_attention`, its sequences scattered over the cache."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch: AttentionBatch

    def contiguous_kv(self, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one sequence, each ``[context, HK, D]``."""
        context = int(self.batch.context_lens[seq])
        blocks = self.batch.block_tables[seq, : -(-context // self.batch.block_size)].long()
        return (
            self.k_cache[blocks].flatten(0, 1)[:context],
            self.v_cache[blocks].flatten(0, 1)[:context],
        )


def paged_case(
    *,
    seqlens_q: list[int],
    context_lens: list[int],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> PagedCase:
    """Normal q, K and V; physical blocks in random order."""
    needed = [-(-context // block_size) for context in context_lens]
    order = torch.randperm(sum(needed)).tolist()
    block_tables = [[order.pop() for _ in range(count)] for count in needed]
    shape = (2, sum(needed), block_size, heads[1], head_dim)
    k_cache, v_cache = torch.randn(shape, dtype=dtype, device=device)
    q = torch.randn(sum(seqlens_q), heads[0], head_dim, dtype=dtype, device=device)
    batch = plan_attention(
        seqlens_q=seqlens_q,
        context_lens=context_lens,
        block_tables=block_tables,
        block_size=block_size,
        device=device,
    )
    return PagedCase(q, k_cache, v_cache, batch)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """``|got - want| / |want|`` in Frobenius norms, in fp64; NaN if any element is NaN."""
    assert got.shape == want.shape, f"expected {tuple(want.shape)}, got {tuple(got.shape)}"
    wide = want.double()
    return float((got.double() - wide).norm() / wide.norm().clamp_min(1e-30))


def poisoned_like(tensor: torch.Tensor) -> torch.Tensor:
    """An output to write to in which every element left out is seen."""
    return torch.full_like(tensor, float("nan"))
