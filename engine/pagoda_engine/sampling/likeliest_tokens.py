"""The likeliest tokens of each row, in an order that nothing but the row decides.

Knows rows of logits. Knows nothing of who asked for how many.
"""

import numpy as np
import torch


def likeliest_tokens(logits: torch.Tensor, num: int) -> torch.Tensor:
    """Return the tokens with the largest logits, the largest first; of equal ones the lowest id.

    So the first tokens of a longer list are the shorter one. `topk` alone promises neither: which
    of several equals it takes, and in which order, depends on how many are wanted.

    Args:
        logits: float32 ``[R, V]`` on any device, which is not waited for. In a row with a NaN the
            result means nothing.
        num: V at most.

    Returns:
        int64 ``[R, num]``.
    """
    if not num:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    if logits.device.type == "cpu":
        values, token_ids = _largest_on_cpu(logits, num)
    else:
        values, token_ids = logits.topk(num, dim=-1)
        token_ids = lowest_of_last_equals(logits, values, token_ids)
    token_ids, order = token_ids.sort(dim=-1)
    return token_ids.gather(
        1, values.gather(1, order).argsort(dim=-1, descending=True, stable=True)
    )


def _largest_on_cpu(logits: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids ``[R, num]``; equals have the lowest ids, but in any order."""
    values, token_ids = logits.topk(min(num + 1, logits.shape[1]), dim=-1)
    if values.shape[1] > num:  # the next one tells whether there was a choice
        last = values[:, num - 1].numpy()
        for row in np.flatnonzero(last == values[:, num].numpy()):
            equals = np.flatnonzero(logits[row].numpy() == last[row])
            num_larger = int((values[row] > values[row, num - 1]).sum())
            token_ids[row, num_larger:num] = torch.from_numpy(equals[: num - num_larger])
    return values[:, :num], token_ids[:, :num]


def lowest_of_last_equals(
    logits: torch.Tensor, values: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Return `token_ids` with the lowest ids where a value equals the last; waits for no device.

    Args:
        logits: float32 ``[R, V]``.
        values: float32 ``[R, K]``, the largest of each row, the largest first.
        token_ids: int64 ``[R, K]`` of those.
    """
    num, vocab_size = values.shape[1], logits.shape[1]
    last = values[:, -1:]
    ids = torch.arange(vocab_size, dtype=torch.float32, device=logits.device)  # V < 2**24
    farthest = ids.new_full((), float("inf"))
    equals = torch.where(logits == last, ids, farthest).topk(num, dim=-1, largest=False).values
    is_larger = values > last
    places = torch.arange(num, device=logits.device) - is_larger.sum(dim=-1, keepdim=True)
    lowest = equals.clamp(max=vocab_size - 1).long().gather(1, places.clamp(min=0))
    return torch.where(is_larger, token_ids, lowest)
