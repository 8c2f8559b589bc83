"""Paged attention on CPU: gather K and V into reused scratch memory, then torch SDPA.

Decodes are gathered in groups of equal padded length and attend with the query heads of a KV head as
rows. Prefills attend sequence by sequence, in spans of rows that skip the keys after them. Masks are
views of one small matrix, never ``[T, N]``. A compiled kernel would replace `run` and nothing else.
"""

import torch
import torch.nn.functional as F

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.cpu.plan import CpuPlan, DecodeGroup, PrefillSpan

ROWS_PER_SPAN = 128
"""Query rows attended at once in prefill: fewer skip more masked keys, more amortise the call."""


def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    out: torch.Tensor,
) -> None:
    """Fill `out` ``[T, H, D]``; arguments as `paged_attention`, already checked."""
    plan = batch.cpu_plan
    assert isinstance(plan, CpuPlan)
    k_rows, row_factor = slot_rows(k_cache)
    v_rows, _ = slot_rows(v_cache)
    keys = _Keys(k_rows, v_rows, row_factor, batch.block_size, plan, k_cache.shape[2:])
    for group in plan.decode_groups(k_rows.shape[1] * k_rows.element_size(), window):
        _decode(q, keys, group, scale, soft_cap, out)
    for span in plan.prefill_spans(window):
        _prefill(q, keys, span, scale, window, soft_cap, out)


def slot_rows(cache: torch.Tensor) -> tuple[torch.Tensor, int]:
    """View ``[num_blocks, block_size, HK, D]`` as rows of ``HK * D``, and the rows between blocks.

    Slot s lies in row ``s // block_size * rows_between + s % block_size``.

    Raises:
        ValueError: tokens of a block are not dense, or blocks do not start on a row.
    """
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    if cache.stride()[1:] != (width, head_dim, 1) or cache.stride(0) % width:
        raise ValueError(
            f"cache: expected dense tokens and blocks a multiple of {width} elements apart, "
            f"got strides {cache.stride()}"
        )
    rows_between = cache.stride(0) // width
    num_rows = (num_blocks - 1) * rows_between + block_size
    return cache.as_strided((num_rows, width), (width, 1)), rows_between
