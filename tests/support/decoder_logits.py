"""A decoder's logits, however its sequences are scheduled, and how close they must be.

Knows decoders and blocks. Knows nothing of engines or of transformers.
"""

from collections.abc import Sequence

import torch

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models.decoder import Decoder
from pagoda_kernels import plan_attention
from support.random_tokens import random_tokens

TOLERANCE = 1e-4
BLOCK_SIZE = 8
CPU = torch.device("cpu")
SEQUENCES = [random_tokens(70), random_tokens(41), random_tokens(5)]
SCHEDULES = {
    "whole": [[70, 0, 0], [0, 41, 0], [0, 0, 5]],
    "chunked": [[33, 0, 0], [30, 41, 0], [7, 0, 5]],
    "decode": [[60, 35, 1], *[[1, 1, 1]] * 4, *[[1, 1, 0]] * 2, *[[1, 0, 0]] * 4],
    "mixed": [[40, 0, 4], [1, 17, 1], [28, 1, 0], [1, 23, 0]],
}
"""Steps: how many tokens each sequence goes on by."""


def logits_of(
    decoder: Decoder, sequences: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Return ``[T, V]`` of each sequence, whose blocks lie in no particular order."""
    shape = decoder.description
    layout = shape.kv_layout(BLOCK_SIZE, torch.float32)
    num_blocks = max(-(-len(tokens) // BLOCK_SIZE) for tokens in sequences)
    kv_cache = KvCache(layout, num_blocks * len(sequences), CPU)
    blocks = list(range(len(sequences) * num_blocks))
    tables = [blocks[i :: len(sequences)] for i in range(len(sequences))]
    starts, found = [0] * len(sequences), [[] for _ in sequences]  # type: ignore[var-annotated]
    for step in steps:
        active = [i for i, count in enumerate(step) if count]
        ends = [start + count for start, count in zip(starts, step, strict=True)]
        plan = plan_attention(
            seqlens_q=[step[i] for i in active],
            context_lens=[ends[i] for i in active],
            block_tables=[tables[i][::-1] for i in active],
            block_size=BLOCK_SIZE,
            device=CPU,
        )
        positions = torch.cat([torch.arange(starts[i], ends[i]) for i in active])
        ids = [token for i in active for token in sequences[i][starts[i] : ends[i]]]
        with torch.inference_mode():
            logits = decoder.forward(torch.tensor(ids), positions, plan, kv_cache, None)
        for i, rows in zip(active, logits.split([step[i] for i in active]), strict=True):
            found[i].append(rows)
        starts = ends
    return [torch.cat(rows) for rows in found]


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = ((found - expected).norm() / expected.norm()).item()
    assert error < TOLERANCE, f"relative error {error:.2e}"
