"""Choose one token for each row of logits, on the device and without waiting for it.

Order: penalties, bias, masks, temperature, truncation (top-n-sigma, top-k, typical-p, top-p, min-p,
XTC), softmax, draw. Every row's result is a function of its own logits and state alone. Knows
nothing of sequences or of when they end.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import torch

from pagoda_engine.sampling.likeliest_tokens import likeliest_tokens
from pagoda_engine.sampling.row_plan import Masks, Penalties, RowPlan, SampleRow
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_kernels import (
    Sampled,
    largest_tokens,
    penalise_logits,
    sample_changed,
    sample_tokens,
)

MIN_LOGPROB = -9999.0
"""Reported in place of minus infinity, which JSON cannot carry."""

INVALID = -1
"""In place of a token where the logits held a NaN or nothing finite."""


class SampledToken(NamedTuple):
    """One row's choice; a tuple, since each step makes one for each of its rows.

    Attributes:
        token_id: the token.
        logprobs: of the model's own distribution; None if not asked.
        is_valid: False when the logits held a NaN or nothing finite; then ``token_id`` means
            nothing.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    is_valid: bool = True


def sample(logits: torch.Tensor, plan: RowPlan) -> list[torch.Tensor]:
    """Choose a token for each row.

    Args:
        logits: ``[S, V]`` of any float dtype, on any device; not changed.
        plan: of the same rows; its token counts get the tokens chosen.

    Returns:
        int64 ``[S]`` token ids or INVALID; where logprobs are wanted also float32 ``[L]`` of the
        chosen tokens, int64 and float32 ``[L, num_top]`` of the likeliest, and if a row asks for
        tokens of its own float32 ``[L, K]`` of those.
    """
    token_ids, is_valid = _choose(logits, plan)
    if plan.penalties is not None:
        for row, counts in zip(plan.penalties.rows, plan.penalties.counts, strict=True):
            counts.add(token_ids.index_select(0, row[None]))
    if plan.seen:
        on_host = token_ids.tolist()
        for index, seen in plan.seen:
            seen.add(on_host[index])
    chosen = token_ids.masked_fill(is_valid.logical_not(), INVALID)
    if plan.logprobs is None:
        return [chosen]
    rows = plan.logprobs.rows
    wide = logits.index_select(0, rows).float()
    top_ids = likeliest_tokens(wide, plan.logprobs.num_top)
    logprobs = torch.log_softmax(wide, dim=-1)
    logprobs.clamp_(min=MIN_LOGPROB)
    own = logprobs.gather(1, token_ids.index_select(0, rows)[:, None])[:, 0]
    tensors = [chosen, own, top_ids, logprobs.gather(1, top_ids)]
    if plan.logprobs.token_ids is not None:
        tensors.append(logprobs.gather(1, plan.logprobs.token_ids))
    return tensors


def to_tokens(tensors: Sequence[torch.Tensor], rows: Sequence[SampleRow]) -> list[SampledToken]:
    """Return what `sample` chose, once its tensors are on the host."""
    token_ids = tensors[0].tolist()
    fields = zip(token_ids, itertools.repeat(None), map(INVALID.__ne__, token_ids), strict=False)
    sampled = list(map(partial(tuple.__new__, SampledToken), fields))  # a third of calling it
    if len(tensors) == 1:
        return sampled
    own, top_ids, top_values, *asked_values = (tensor.tolist() for tensor in tensors[1:])
    wanted = [i for i, row in enumerate(rows) if row.state.params.num_logprobs is not None]
    for j, i in enumerate(wanted):
        params = rows[i].state.params
        if sampled[i].is_valid:
            num = params.num_logprobs
            best = list(zip(top_ids[j][:num], top_values[j][:num], strict=True))
            if asked := params.logprob_token_ids:
                best = list(zip(asked, asked_values[0][j][: len(asked)], strict=True))
                best.sort(key=itemgetter(1), reverse=True)
            logprobs = TokenLogprobs(token_ids[i], own[j], tuple(best))
            sampled[i] = SampledToken(token_ids[i], logprobs)
    return sampled


def _choose(logits: torch.Tensor, plan: RowPlan) -> Sampled:
    if plan.changes_logits and not plan.needs_copy:
        sampled = sample_changed(logits, plan.draw, biased=plan.biased, seen=plan.seen)
        if sampled is not None:
            return sampled
    adjusted = _adjust(logits, plan) if plan.changes_logits else logits
    return largest_tokens(adjusted) if plan.draw is None else sample_tokens(adjusted, plan.draw)


def _adjust(logits: torch.Tensor, plan: RowPlan) -> torch.Tensor:
    adjusted = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if plan.penalties is not None:
        rows = plan.penalties.rows
        adjusted.index_copy_(0, rows, _penalise(adjusted.index_select(0, rows), plan.penalties))
    for row, seen in plan.seen:
        seen.penalise(adjusted[row].numpy())
    for row, bias in plan.biased:  # one by one: nothing is joined at each step
        bias.add_to(adjusted[row])
    if plan.repeated is not None:
        row_ids, token_ids, penalties = plan.repeated  # no pair of row and token comes twice
        adjusted.view(-1).scatter_add_(0, row_ids * adjusted.shape[1] + token_ids, penalties)
    if plan.forbidden is not None:
        # Not `= float("-inf")`: on CUDA that number would be copied over, and the copy waited for.
        adjusted.index_put_(plan.forbidden, adjusted.new_full((1,), float("-inf")))
    if plan.masks is not None:
        rows = plan.masks.rows
        adjusted.index_copy_(0, rows, _mask(adjusted.index_select(0, rows), plan.masks))
    return adjusted


def _mask(logits: torch.Tensor, masks: Masks) -> torch.Tensor:
    # A byte at a time: to take each bit apart takes six times as long.
    index = masks.allowed.view(torch.uint8).flatten().int()
    bits = masks.bits_of_byte.index_select(0, index).view(torch.bool)
    allowed = bits.view(len(logits), -1)[:, : logits.shape[1]]
    return torch.where(allowed, logits, logits.new_full((), float("-inf")))


def _penalise(logits: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    in_output = torch.stack([counts.in_output for counts in penalties.counts])
    in_prompt = torch.stack([counts.in_prompt for counts in penalties.counts])
    return penalise_logits(logits, in_output, in_prompt, *penalties.factors)
