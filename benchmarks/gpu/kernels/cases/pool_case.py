"""Cases over blocks of a random KV pool of Llama-3.1-8B's shape, whose results are exact."""

from collections.abc import Callable, Mapping

import torch

from gpu.kernels.case import Case, Launch

NUM_LAYERS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 32, 16, 8, 128
RUN_BYTES = 2 * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM
"""K or V of one layer of a block."""

Make = Callable[[torch.Tensor, torch.Tensor], Launch]
"""(pool, block_ids) -> what is timed."""


def pool_case(
    device: torch.device,
    op: str,
    words: str,
    size: tuple[int, int],
    *,
    num_passes: int,
    error: Callable[[torch.Tensor, torch.Tensor], float],
    launch: Make,
    baselines: Mapping[str, Make],
    goal: float | None = None,
) -> Case:
    """A case whose functions are given a pool of twice as many blocks, and some in random order.

    Args:
        device: of the pool.
        op: see `Case`.
        words: what is done with the blocks.
        size: how many blocks, and layers of the pool.
        num_passes: times that every byte of the blocks is read or written.
        error: (pool, block_ids) -> 0.0 where all is right.
        launch: see `Case.build`.
        baselines: see `Case`.
        goal: see `Case`.
    """
    num_blocks, num_layers = size

    def inputs(seed: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if seed is not None:
            torch.manual_seed(seed)
        shape = (2, num_layers, 2 * num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        pool = torch.randn(shape, dtype=torch.bfloat16, device=device)
        return pool, some_blocks(pool, num_blocks)

    def built(make: Make) -> Callable[[], Launch]:
        return lambda: make(*inputs())

    return Case(
        op=op,
        name=f"{words} N{num_blocks} L{num_layers} bf16",
        check=lambda seed: error(*inputs(seed)),
        tolerance=0.0,
        build=built(launch),
        num_bytes=num_passes * num_blocks * 2 * num_layers * RUN_BYTES,
        goal=goal,
        baselines={name: built(make) for name, make in baselines.items()},
    )


def some_blocks(pool: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Distinct blocks of a pool in random order: int64 ``[num_blocks]``."""
    return torch.randperm(pool.shape[2], device=pool.device)[:num_blocks]


def different(got: torch.Tensor, want: torch.Tensor) -> float:
    """Fraction of 64-bit words that differ. Both are contiguous and of one shape."""
    assert got.shape == want.shape, f"expected {tuple(want.shape)}, got {tuple(got.shape)}"
    words = got.view(torch.int64) != want.view(torch.int64)
    return int(words.count_nonzero()) / words.numel()
