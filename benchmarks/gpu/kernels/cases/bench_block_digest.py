"""Digests of blocks, alone and on the way out of and into the pool, beside the same copies without.

A digest alone reads every byte once, in a buffer or in the pool. Fused into the gather it should
cost nothing that memory does not cost anyway; the checked scatter reads the blocks twice, which its
roofline counts.
"""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.pool_case import NUM_LAYERS, different, pool_case
from pagoda_kernels import digest_blocks, digest_pool, gather_blocks, scatter_blocks
from pagoda_kernels.kv import reference
from pagoda_kernels.kv.block_digest import as_bytes


def cases(device: torch.device) -> list[Case]:
    return [
        digest_case(device, 512),
        digest_pool_case(device, 512),
        gather_case(device, 64),
        gather_case(device, 512, goal=0.85),
        scatter_case(device, 512),
    ]


def digest_case(device: torch.device, num_blocks: int, num_layers: int = NUM_LAYERS) -> Case:
    """Every byte read once."""
    return pool_case(
        device,
        "block_digest",
        "digest",
        (num_blocks, num_layers),
        num_passes=1,
        error=_digest_error,
        launch=_digest,
        baselines={},
    )


def digest_pool_case(device: torch.device, num_blocks: int, num_layers: int = NUM_LAYERS) -> Case:
    """The same where the blocks lie, a run after another."""
    return pool_case(
        device,
        "block_digest",
        "digest in the pool",
        (num_blocks, num_layers),
        num_passes=1,
        error=_digest_pool_error,
        launch=_digest_pool,
        baselines={"gather digest": _gather},
    )


def gather_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """Every byte read once and written once."""
    return pool_case(
        device,
        "block_digest",
        "gather digest",
        (num_blocks, num_layers),
        num_passes=2,
        error=_gather_error,
        launch=_gather,
        baselines={"gather": _plain_gather},
        goal=goal,
    )


def scatter_case(device: torch.device, num_blocks: int, num_layers: int = NUM_LAYERS) -> Case:
    """Every byte read twice and written once."""
    return pool_case(
        device,
        "block_digest",
        "checked scatter",
        (num_blocks, num_layers),
        num_passes=3,
        error=_scatter_error,
        launch=_scatter,
        baselines={"scatter": _plain_scatter},
    )


def _digest(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    rows = as_bytes(gather_blocks(pool, block_ids))
    return lambda: digest_blocks(rows)


def _digest_pool(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    return lambda: digest_pool(pool, block_ids)


def _gather(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    return lambda: gather_blocks(pool, block_ids, with_digest=True)


def _plain_gather(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    return lambda: gather_blocks(pool, block_ids)


def _scatter(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    blocks, digests = gather_blocks(pool, block_ids, with_digest=True)
    return lambda: scatter_blocks(pool, block_ids, blocks, expected=digests)


def _plain_scatter(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    blocks = gather_blocks(pool, block_ids)
    return lambda: scatter_blocks(pool, block_ids, blocks)


def _on_host(blocks: torch.Tensor) -> torch.Tensor:
    return digest_blocks(as_bytes(blocks.cpu()))


def _digest_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    blocks = reference.gather_blocks(pool, block_ids)
    return different(digest_blocks(as_bytes(blocks)).cpu(), _on_host(blocks))


def _digest_pool_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    want = _on_host(reference.gather_blocks(pool, block_ids))
    return different(digest_pool(pool, block_ids).cpu(), want)


def _gather_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    blocks, digests = gather_blocks(pool, block_ids, with_digest=True)
    want = reference.gather_blocks(pool, block_ids)
    return max(different(blocks, want), different(digests.cpu(), _on_host(want)))


def _scatter_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    """Two thirds of the blocks arrive whole; the others must leave no trace."""
    blocks, digests = gather_blocks(pool.flip(2), block_ids, with_digest=True)
    as_bytes(blocks)[::3, 12345] ^= 1
    is_bad = torch.arange(len(block_ids), device=pool.device) % 3 == 0
    want = pool.clone()
    reference.scatter_blocks(want, block_ids[~is_bad], blocks[~is_bad])
    mismatches = scatter_blocks(pool, block_ids, blocks, expected=digests)
    return max(different(pool, want), float((mismatches != is_bad).any()))
