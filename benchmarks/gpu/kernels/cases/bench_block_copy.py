"""Blocks of all layers to one buffer, back, and from pool to pool, beside a copy of as many bytes.

From pool to pool they are digested on the way.
"""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.pool_case import NUM_LAYERS, different, pool_case, some_blocks
from pagoda_kernels import copy_blocks, digest_blocks, gather_blocks, scatter_blocks
from pagoda_kernels.kv import reference
from pagoda_kernels.kv.block_digest import as_bytes


def cases(device: torch.device) -> list[Case]:
    return [
        gather_case(device, 64),
        gather_case(device, 512, goal=0.85),
        scatter_case(device, 512, goal=0.85),
        copy_case(device, 512, goal=0.85),
    ]


def gather_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """Every byte of the blocks read once and written once."""
    return pool_case(
        device,
        "block_copy",
        "gather",
        (num_blocks, num_layers),
        num_passes=2,
        error=_gather_error,
        launch=_gather,
        baselines={"copy": _plain_copy},
        goal=goal,
    )


def scatter_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """Inverse of the gather."""
    return pool_case(
        device,
        "block_copy",
        "scatter",
        (num_blocks, num_layers),
        num_passes=2,
        error=_scatter_error,
        launch=_scatter,
        baselines={"copy": _plain_copy},
        goal=goal,
    )


def copy_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """To scattered places of another pool."""
    return pool_case(
        device,
        "block_copy",
        "pool to pool",
        (num_blocks, num_layers),
        num_passes=2,
        error=_copy_error,
        launch=_copy,
        baselines={"copy": _plain_copy},
        goal=goal,
    )


def _gather(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    return lambda: gather_blocks(pool, block_ids)


def _scatter(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    blocks = torch.randn_like(gather_blocks(pool, block_ids))
    return lambda: scatter_blocks(pool, block_ids, blocks)


def _copy(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    target, places = _target(pool, block_ids)
    return lambda: copy_blocks(pool, block_ids, target, places)


def _plain_copy(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    source = gather_blocks(pool, block_ids)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _target(pool: torch.Tensor, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Another pool, and places in it."""
    target = torch.randn_like(pool)
    return target, some_blocks(target, len(block_ids))


def _gather_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    return different(gather_blocks(pool, block_ids), reference.gather_blocks(pool, block_ids))


def _scatter_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    blocks = torch.randn_like(gather_blocks(pool, block_ids))
    want = pool.clone()
    reference.scatter_blocks(want, block_ids, blocks)
    scatter_blocks(pool, block_ids, blocks)
    return different(pool, want)


def _copy_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    target, places = _target(pool, block_ids)
    blocks, want = reference.gather_blocks(pool, block_ids), target.clone()
    reference.scatter_blocks(want, places, blocks)
    digests = copy_blocks(pool, block_ids, target, places)
    on_host = digest_blocks(as_bytes(blocks.cpu()))
    return max(different(target, want), different(digests.cpu(), on_host))
