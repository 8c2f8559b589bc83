"""The KV cache of one layer seen as rows of one token each, which torch copies fastest.

Knows strides. Knows nothing of sequences.
"""

import torch


def slot_rows(cache: torch.Tensor) -> tuple[torch.Tensor, int]:
    """View ``[num_blocks, block_size, HK, D]`` as rows of ``HK * D``, and the rows between blocks.

    Slot s lies in row ``s // block_size * rows_between + s % block_size``.

    Raises:
        ValueError: tokens of a block are not dense, or blocks do not start on a row.
    """
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    block_stride = cache.stride(0)
    if cache.stride()[1:] != (width, head_dim, 1) or block_stride % width:
        raise ValueError(
            f"cache: expected dense tokens and blocks a multiple of {width} elements apart, "
            f"got strides {cache.stride()}"
        )
    rows_between = block_stride // width
    num_rows = (num_blocks - 1) * rows_between + block_size
    return cache.as_strided((num_rows, width), (width, 1)), rows_between


def rows_of_slots(slots: torch.Tensor, block_size: int, rows_between: int) -> torch.Tensor:
    """Rows of `slots` in `slot_rows`; the slots themselves if blocks follow one another."""
    if rows_between == block_size:
        return slots
    return slots // block_size * rows_between + slots % block_size
