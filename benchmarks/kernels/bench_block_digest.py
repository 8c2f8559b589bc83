"""Digests of blocks, alone and on the way out of and into the pool, beside the same copies without.

The digest alone reads every byte once. Fused into the gather it should cost nothing that memory
does not cost anyway; the checked scatter reads the blocks twice, which its roofline counts.
"""

import torch
from case import Case, Launch

from pagoda.kernels import gather_blocks, reference, scatter_blocks
from pagoda.kernels.block_digest import digest_blocks

NUM_LAYERS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 32, 16, 8, 128
BLOCK_BYTES = 2 * 2 * NUM_LAYERS * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM


def cases(device: torch.device) -> list[Case]:
    return [
        digest_case(device, 512),
        gather_case(device, 64),
        gather_case(device, 512, goal=0.85),
        scatter_case(device, 512),
    ]


def digest_case(device: torch.device, num_blocks: int, num_layers: int = NUM_LAYERS) -> Case:
    """Every byte read once."""
    return Case(
        op="block_digest",
        name=f"digest N{num_blocks} L{num_layers} bf16",
        check=lambda seed: _digest_error(*_inputs(device, num_blocks, num_layers, seed)),
        tolerance=0.0,
        build=lambda: _digest(*_inputs(device, num_blocks, num_layers)),
        num_bytes=num_blocks * BLOCK_BYTES * num_layers // NUM_LAYERS,
    )


def gather_case(
    device: torch.device, num_blocks: int, goal: float | None = None, num_layers: int = NUM_LAYERS
) -> Case:
    """Every byte read once and written once."""
    return Case(
        op="block_digest",
        name=f"gather digest N{num_blocks} L{num_layers} bf16",
        check=lambda seed: _gather_error(*_inputs(device, num_blocks, num_layers, seed)),
        tolerance=0.0,
        build=lambda: _gather(*_inputs(device, num_blocks, num_layers)),
        num_bytes=2 * num_blocks * BLOCK_BYTES * num_layers // NUM_LAYERS,
        goal=goal,
        baselines={"gather": lambda: _plain_gather(*_inputs(device, num_blocks, num_layers))},
    )


def scatter_case(device: torch.device, num_blocks: int, num_layers: int = NUM_LAYERS) -> Case:
    """Every byte read twice and written once."""
    return Case(
        op="block_digest",
        name=f"checked scatter N{num_blocks} L{num_layers} bf16",
        check=lambda seed: _scatter_error(*_inputs(device, num_blocks, num_layers, seed)),
        tolerance=0.0,
        build=lambda: _scatter(*_inputs(device, num_blocks, num_layers)),
        num_bytes=3 * num_blocks * BLOCK_BYTES * num_layers // NUM_LAYERS,
        baselines={"scatter": lambda: _plain_scatter(*_inputs(device, num_blocks, num_layers))},
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


def _as_bytes(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.uint8).view(len(blocks), -1)


def _digest(pool: torch.Tensor, block_ids: torch.Tensor) -> Launch:
    rows = _as_bytes(gather_blocks(pool, block_ids))
    return lambda: digest_blocks(rows)


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


def _different(got: torch.Tensor, want: torch.Tensor) -> float:
    """Fraction of bytes that differ."""
    return float((got.view(torch.uint8) != want.view(torch.uint8)).float().mean())


def _digest_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    rows = _as_bytes(gather_blocks(pool, block_ids))
    return _different(digest_blocks(rows).cpu(), digest_blocks(rows.cpu()))


def _gather_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    blocks, digests = gather_blocks(pool, block_ids, with_digest=True)
    want = reference.gather_blocks(pool, block_ids)
    on_host = digest_blocks(_as_bytes(want).cpu())
    return max(_different(blocks, want), _different(digests.cpu(), on_host))


def _scatter_error(pool: torch.Tensor, block_ids: torch.Tensor) -> float:
    """Two thirds of the blocks arrive whole; the others must leave no trace."""
    blocks, digests = gather_blocks(pool.flip(2), block_ids, with_digest=True)
    _as_bytes(blocks)[::3, 12345 % BLOCK_BYTES] ^= 1
    is_bad = torch.arange(len(block_ids), device=pool.device) % 3 == 0
    want = pool.clone()
    reference.scatter_blocks(want, block_ids[~is_bad], blocks[~is_bad])
    mismatches = scatter_blocks(pool, block_ids, blocks, expected=digests)
    return max(_different(pool, want), float((mismatches != is_bad).any()))
