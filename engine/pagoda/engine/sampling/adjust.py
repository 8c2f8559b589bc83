"""What changes logits before the temperature: penalties, bias, no stop before ``min_tokens``."""

from collections.abc import Sequence

import torch

from pagoda.engine.sampling.sampling_state import SamplingState


def adjust_logits(raw: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Return the logits with penalties, bias and stop masks applied.

    Args:
        raw: ``[S, V]`` float32; not changed. Returned as it is when no row asks for anything.
        states: one for each row.
    """
    penalised = [i for i, state in enumerate(states) if state.has_penalties]
    biased = [i for i, state in enumerate(states) if state.params.logit_bias]
    masked = [i for i, state in enumerate(states) if state.must_not_stop]
    if not (penalised or biased or masked):
        return raw
    logits = raw.clone()
    if penalised:
        _apply_penalties(logits, penalised, [states[i] for i in penalised])
    if biased:
        _apply_bias(logits, biased, [states[i] for i in biased])
    if masked:
        _mask_stops(logits, masked, [states[i] for i in masked])
    return logits


def _apply_penalties(
    logits: torch.Tensor, rows: list[int], states: Sequence[SamplingState]
) -> None:
    device = logits.device
    index = torch.tensor(rows, device=device)
    per_row = [state.counts(device) for state in states]
    counts = torch.stack([output_counts for output_counts, _ in per_row])  # [R, V]
    in_prompt = torch.stack([prompt_mask for _, prompt_mask in per_row])  # [R, V]
    params = torch.tensor(
        [
            (s.params.repetition_penalty, s.params.frequency_penalty, s.params.presence_penalty)
            for s in states
        ],
        dtype=torch.float32,
        device=device,
    )
    repetition, frequency, presence = params[:, :, None].unbind(1)  # [R, 1] each
    in_output = counts > 0
    chosen = logits[index]
    repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen = torch.where(in_prompt | in_output, repeated, chosen)
    logits[index] = chosen - frequency * counts - presence * in_output


def _apply_bias(logits: torch.Tensor, rows: list[int], states: Sequence[SamplingState]) -> None:
    entries = [
        (row, token_id, bias)
        for row, state in zip(rows, states, strict=True)
        for token_id, bias in state.params.logit_bias.items()
    ]
    row_ids, token_ids, biases = zip(*entries, strict=True)
    device = logits.device
    at = torch.tensor(row_ids, device=device), torch.tensor(token_ids, device=device)
    logits[at] += torch.tensor(biases, dtype=torch.float32, device=device)


def _mask_stops(logits: torch.Tensor, rows: list[int], states: Sequence[SamplingState]) -> None:
    entries = [
        (row, token_id)
        for row, state in zip(rows, states, strict=True)
        for token_id in state.stop_token_ids
    ]
    row_ids, token_ids = zip(*entries, strict=True)
    device = logits.device
    at = torch.tensor(row_ids, device=device), torch.tensor(token_ids, device=device)
    logits[at] = float("-inf")
