"""Sums of K shared among programs: every split leaves its part, the last to arrive adds them up.

The order of the sum is fixed, so results repeat. Knows one accumulator tile, not what it means.
Reference: the stream-k fix-up of Osama et al., https://arxiv.org/abs/2301.03598.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import functools

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import num_processors

MAX_TILES = 4096
"""Tiles that may be split; grids beyond fill every GPU without splitting."""

MIN_SPLIT_STEPS = 4
"""Steps of the K loop below which a split spends its time filling the pipeline."""

LARGE_TILE = 4096
"""Sums above which one program per processor has enough bytes in flight, and parts cost more."""

MAX_STREAMS = 64
"""Streams of a device that may run split matmuls, twice what torch has in its pool."""


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


def choose_num_splits(
    num_tiles: int, num_steps: int, tile_elements: int, device: torch.device
) -> int:
    """Splits that give every processor two programs, or one of a LARGE_TILE; not too short ones."""
    wanted = 2 * num_processors(device) // max(1, num_tiles)
    if tile_elements > LARGE_TILE:
        wanted = -(-num_processors(device) // max(1, num_tiles))
    return max(1, min(wanted, num_steps // MIN_SPLIT_STEPS)) if num_tiles <= MAX_TILES else 1


class Counters:
    """Zeroed counters of one device, MAX_TILES for every stream that asks.

    Launches that may run at the same time must not share counters; those of one stream follow one
    another, and each leaves its counters at zero. A CUDA graph keeps the counters of the stream it
    was captured on: it must not be replayed beside other launches of that stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.zeros(MAX_STREAMS, MAX_TILES, dtype=torch.int32, device=device)
        self._row_of_stream: dict[int, int] = {}

    def of_stream(self, stream: int) -> torch.Tensor:
        """Return ``[MAX_TILES]`` int32, always the same for a stream.

        Raises:
            RuntimeError: more streams than MAX_STREAMS.
        """
        row = self._row_of_stream.setdefault(stream, len(self._row_of_stream))
        if row >= MAX_STREAMS:
            raise RuntimeError(
                f"split matmuls on {row + 1} streams of a device: expected at most {MAX_STREAMS}; "
                "launch them on fewer"
            )
        return self._pool[row]


@functools.cache
def counters_on(device: torch.device) -> Counters:
    """Return the counters of a device, made when it first runs a split matmul.

    Raises:
        RuntimeError: a CUDA graph is being captured: it would zero them whenever it is replayed,
            and no one would before.
    """
    if device.type != "cuda":
        return Counters(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the first split matmul of a device cannot be captured in a CUDA graph: "
            "run the model once before the capture"
        )
    counters = Counters(device)
    torch.cuda.synchronize(device)  # other streams must not see them before they are zero
    return counters


def split_buffers(
    device: torch.device, num_tiles: int, num_splits: int, tile_elements: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(partial, counters) for `sum_splits`; counters as in `Counters`."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    size = num_tiles * num_splits * tile_elements if num_splits > 1 else 1
    partial = torch.empty(size, dtype=torch.float32, device=device)
    return partial, counters_on(device).of_stream(stream)
