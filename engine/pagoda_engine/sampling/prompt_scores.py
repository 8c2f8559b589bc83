"""Logprobs of prompt tokens, from the hidden states of the tokens before them.

Knows rows and tokens. Knows nothing of sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagoda_engine.sampling.likeliest_tokens import likeliest_tokens
from pagoda_engine.sampling.sampler import MIN_LOGPROB
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_kernels.host_copy import to_device


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Q rows whose next token is known.

    Attributes:
        next_token_ids: of each row.
        nums: alternatives that each row asks for.
        on_device: int64 ``[Q]``, the next tokens.
    """

    next_token_ids: Sequence[int]
    nums: Sequence[int]
    on_device: torch.Tensor

    @classmethod
    def of(
        cls, next_token_ids: Sequence[int], nums: Sequence[int], device: torch.device
    ) -> "ScoredRows | None":
        """Put tokens on the device, without waiting for it; None if there are none."""
        if not next_token_ids:
            return None
        (on_device,) = to_device([np.array(next_token_ids, np.int64)], device)
        return cls(next_token_ids, nums, on_device)


def score(
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    rows: ScoredRows,
    *,
    max_rows: int,
) -> list[torch.Tensor]:
    """Return what the model thought of each row's next token, and of the likeliest ones.

    Args:
        hidden: ``[Q, hidden]``.
        logits_of: ``[R, hidden]`` -> ``[R, V]``; asked for at most `max_rows` rows at a time.
        rows: of `hidden`.
        max_rows: logits of a whole prompt would take gigabytes.

    Returns:
        Of each row float32 ``[Q]`` logprobs and int64 ``[Q]`` ranks of its token, int64 and float32
        ``[Q, max(nums)]`` of the likeliest.
    """
    parts = []
    for start in range(0, len(hidden), max_rows):
        some = slice(start, start + max_rows)
        wide = logits_of(hidden[some]).float()
        top_ids = likeliest_tokens(wide, max(rows.nums))
        logprobs = torch.log_softmax(wide, dim=-1)
        logprobs.clamp_(min=MIN_LOGPROB)
        own = logprobs.gather(1, rows.on_device[some, None])
        ranks = (logprobs > own).sum(dim=-1) + 1
        parts.append((own[:, 0], ranks, top_ids, logprobs.gather(1, top_ids)))
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def to_prompt_logprobs(tensors: Sequence[torch.Tensor], rows: ScoredRows) -> list[TokenLogprobs]:
    """Return what `score` found, once its tensors are on the host."""
    columns = (tensor.tolist() for tensor in tensors)
    return [
        TokenLogprobs(token_id, own, tuple(zip(top_ids[:num], top_values[:num], strict=True)), rank)
        for token_id, num, own, rank, top_ids, top_values in zip(
            rows.next_token_ids, rows.nums, *columns, strict=True
        )
    ]
