"""Sums of K shared among programs: every split leaves its part, the last to arrive adds them up.

The order of the sum is fixed, so results repeat. Knows one accumulator tile, not what it means.
Reference: the stream-k fix-up of Osama et al., https://arxiv.org/abs/2301.03598.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels.triton_ops.launch import num_processors

MAX_TILES = 4096
"""Tiles that may be split; grids beyond fill every GPU without splitting."""

MIN_SPLIT_STEPS = 4
"""Steps of the K loop below which a split spends its time filling the pipeline."""

_counters: dict[tuple[torch.device, int], torch.Tensor] = {}


@triton.jit
def sum_splits(
    acc,
    partial_ptr,
    counter_ptr,
    tile,
    split,
    num_splits,
    BLOCK_A: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """``(sum_i partial_i, True)`` in the last split of `tile` to arrive, ``(acc, False)`` before.

    Tile acc [BLOCK_A, BLOCK_B] fp32. The last one sets the counter back to zero.
    """
    offs = tl.arange(0, BLOCK_A)[:, None] * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    first = partial_ptr + tile.to(tl.int64) * num_splits * (BLOCK_A * BLOCK_B)
    tl.store(first + split * (BLOCK_A * BLOCK_B) + offs, acc)
    tl.debug_barrier()  # all threads have stored before one of them releases
    arrived = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel", scope="gpu")
    is_last = arrived == num_splits - 1
    if is_last:
        acc = tl.zeros([BLOCK_A, BLOCK_B], dtype=tl.float32)
        for i in range(num_splits):
            # [BLOCK_A, BLOCK_B]
            acc += tl.load(first + i * (BLOCK_A * BLOCK_B) + offs, cache_modifier=".cg")
        tl.store(counter_ptr + tile, 0)
    return acc, is_last


def choose_num_splits(num_tiles: int, num_steps: int, device: torch.device) -> int:
    """Splits that give every processor two programs, none shorter than MIN_SPLIT_STEPS."""
    wanted = 2 * num_processors(device) // max(1, num_tiles)
    return max(1, min(wanted, num_steps // MIN_SPLIT_STEPS)) if num_tiles <= MAX_TILES else 1


def split_buffers(
    device: torch.device, num_tiles: int, num_splits: int, tile_elements: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(partial, counters) for `sum_splits`; counters are shared by the launches of a stream.

    Counters are made on first use, which therefore must not be inside a CUDA graph capture.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    counters = _counters.get((device, stream))
    if counters is None:
        counters = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
        _counters[device, stream] = counters
    size = num_tiles * num_splits * tile_elements if num_splits > 1 else 1
    return torch.empty(size, dtype=torch.float32, device=device), counters
