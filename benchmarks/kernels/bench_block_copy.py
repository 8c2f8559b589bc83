"""Blocks of all layers to one contiguous buffer and back, beside a plain copy of as many bytes."""

import torch
from case import Case, Launch
from inputs import relative_error

from pagoda.kernels import gather_blocks, reference, scatter_blocks

NUM_LAYERS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 32, 16, 8, 128
BLOCK_BYTES = 2 * 2 * NUM_LAYERS * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM


def cases(device: torch.device) -> list[Case]:
    return [
        gather_case(device, 64),
        gather_case(device, 512, goal=0.85),
        scatter_case(device, 512, goal=0.85),
    ]


def gather_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """Every byte of the blocks read once and written once."""
    return Case(
        op="block_copy",
        name=f"gather N{num_blocks} L{num_layers} bf16",
        check=lambda seed: _gather_error(*_inputs(device, num_blocks, num_layers, seed)),
        tolerance=0.0,
        build=lambda: _gather(*_inputs(device, num_blocks, num_layers)),
        num_bytes=2 * num_blocks * BLOCK_BYTES * num_layers // NUM_LAYERS,
        goal=goal,
        baselines={"copy": lambda: _plain_copy(*_inputs(device, num_blocks, num_layers))},
    )


def scatter_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """Inverse of the gather."""
    return Case(
        op="block_copy",
        name=f"scatter N{num_blocks} L{num_layers} bf16",
        check=lambda seed: _scatter_error(*_inputs(device, num_blocks, num_layers, seed)),
        tolerance=0.0,
        build=lambda: _scatter(*_inputs(device, num_blocks, num_layers)),
        num_bytes=2 * num_blocks * BLOCK_BYTES * num_layers // NUM_LAYERS,
        goal=goal,
        baselines={"copy": lambda: _plain_copy(*_inputs(device, num_blocks, num_layers))},
    )


def _inputs(
    device: torch.device, num_blocks: int, num_layers: int, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(pool, block_ids): a pool of twice as many blocks, in random order."""
    if seed is not None:
        torch.manual_seed(seed)
    shape = (2, num_layers, 2 * num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16, device=device)
    return pool, torch.randperm(2 * num_blocks, device=device)[:num_blocks]


def _gather(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    return lambda: gather_blocks(pool, block_ids)


def _scatter(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    blocks = torch.randn_like(gather_blocks(pool, block_ids))
    return lambda: scatter_blocks(pool, block_ids, blocks)


def _plain_copy(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    source = gather_blocks(pool, block_ids)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _gather_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    return relative_error(gather_blocks(pool, block_ids), reference.gather_blocks(pool, block_ids))


def _scatter_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    blocks = torch.randn_like(gather_blocks(pool, block_ids))
    want = pool.clone()
    reference.scatter_blocks(want, block_ids, blocks)
    scatter_blocks(pool, block_ids, blocks)
    return relative_error(pool, want)
