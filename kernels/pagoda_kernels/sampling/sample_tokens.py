"""From logits to tokens on the device, without waiting for it: penalties, truncation, the draw.

Every row's token is a function of its own logits, parameters, seed and output index: the other rows
and the device's grid do not matter. Knows nothing of sequences or of when they end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagoda_kernels.checks import check_float, check_fp32, check_last_dim_dense, check_shape
from pagoda_kernels.sampling import cpu as cpu_sampling
from pagoda_kernels.sampling.logit_bias import LogitBias
from pagoda_kernels.sampling.rows import SamplingRows
from pagoda_kernels.sampling.seen_tokens import SeenTokens


class Sampled(NamedTuple):
    """What was chosen for each row.

    Attributes:
        token_ids: ``[S]`` int64; 0 where not valid.
        is_valid: ``[S]`` bool; False where the logits held a NaN, an infinity or nothing finite.
    """

    token_ids: torch.Tensor
    is_valid: torch.Tensor


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> Sampled:
    """Choose a token for each row: temperature, top-k, softmax, top-p, min-p, inverse CDF.

    Truncation is by threshold, so equally likely tokens are kept or dropped together. The draw
    takes the first token, in order of id, whose cumulative mass exceeds ``uniform * total``; masses
    are integers in units of 2**-62, so no order of summation shows. Reference:
    `reference.sample_tokens`; random numbers are Philox4x32-10 (Salmon et al., SC'11).

    Args:
        logits: ``[S, V]`` fp32, fp16 or bf16, penalties and bias applied; rows dense. Unchanged.
        rows: from `plan_sampling` on the device of logits.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    check_shape("logits", logits, (None, None))
    check_float("logits", logits)
    check_last_dim_dense("logits", logits)
    if logits.shape[1] == 0:
        raise ValueError("logits: expected a vocabulary of at least 1, got 0")
    check_shape("rows.seeds", rows.seeds, (logits.shape[0],))
    if rows.seeds.device != logits.device:
        raise ValueError(f"rows: expected on {logits.device}, got {rows.seeds.device}")
    if logits.is_cuda:
        from pagoda_kernels.sampling.triton.sample_tokens import (
            sample_tokens as sample_tokens_triton,
        )

        return Sampled(*sample_tokens_triton(logits, rows))
    return Sampled(*cpu_sampling.sample_tokens(logits, rows))


def largest_tokens(logits: torch.Tensor) -> Sampled:
    """Choose each row's largest logit, of equal ones the first: ``argmax``, without parameters.

    On a CPU the native library's or numpy's, which use vectors where torch's does not.

    Args:
        logits: ``[S, V]`` fp32, fp16 or bf16; rows dense. Unchanged.

    Raises:
        ValueError: the shape, strides or dtype do not fit.
    """
    check_shape("logits", logits, (None, None))
    check_float("logits", logits)
    check_last_dim_dense("logits", logits)
    if not logits.is_cuda:
        return Sampled(*cpu_sampling.largest_tokens(logits))
    values, token_ids = logits.max(dim=-1)
    is_valid = values - values == 0  # a third of the operators of `isfinite`
    return Sampled(token_ids.masked_fill(is_valid.logical_not(), 0), is_valid)


def sample_changed(
    logits: torch.Tensor,
    rows: SamplingRows | None,
    *,
    biased: Sequence[tuple[int, LogitBias]],
    seen: Sequence[tuple[int, SeenTokens]],
) -> Sampled | None:
    """Choose a token for each row, of logits that are changed as they are read, not in a copy.

    Penalties come first, then biases; the tokens are those that the changed logits would give.

    Args:
        logits: ``[S, V]`` fp32, fp16 or bf16; rows dense. Unchanged.
        rows: from `plan_sampling` on the device of logits; None takes each row's largest.
        biased: (row, what is added to its logits), no row twice.
        seen: (row, tokens for its penalties), no row twice.

    Returns:
        None where that cannot be: on a GPU, without the native library, of fp16, or where a row has
        top-n-sigma, typical-p or XTC.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or a token is beyond the vocabulary.
    """
    check_shape("logits", logits, (None, None))
    check_float("logits", logits)
    check_last_dim_dense("logits", logits)
    if rows is not None:
        check_shape("rows.seeds", rows.seeds, (logits.shape[0],))
    if logits.is_cuda:
        return None
    sampled = cpu_sampling.sample_changed(logits, rows, biased, seen)
    return None if sampled is None else Sampled(*sampled)


def penalise_logits(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Penalties for tokens seen before: ``seen(l) - frequency * n - presence * [n > 0]``.

    ``seen(l)`` is ``l / repetition`` if l > 0, else ``l * repetition``, for tokens of the prompt or
    the output (CTRL, arXiv 1909.05858); n counts the output alone. fp32, rounded each step.
    Reference: `reference.penalise_logits`.

    Args:
        logits: ``[S, V]`` fp32, fp16 or bf16; rows dense. Unchanged.
        output_counts: ``[S, V]`` fp32 or int32; rows dense.
        in_prompt: ``[S, V]`` bool; rows dense.
        repetition: ``[S]`` fp32, > 0; 1 = off.
        frequency: ``[S]`` fp32; 0 = off.
        presence: ``[S]`` fp32; 0 = off.

    Returns:
        New contiguous ``[S, V]`` fp32.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    check_shape("logits", logits, (None, None))
    check_float("logits", logits)
    _check_counts("output_counts", output_counts, logits, (torch.float32, torch.int32))
    _check_counts("in_prompt", in_prompt, logits, (torch.bool,))
    for name, factor in (
        ("repetition", repetition),
        ("frequency", frequency),
        ("presence", presence),
    ):
        check_shape(name, factor, logits.shape[:1])
        check_fp32(name, factor, logits.device)
    arguments = logits, output_counts, in_prompt, repetition, frequency, presence
    if logits.is_cuda:
        from pagoda_kernels.sampling.triton.penalise_logits import (
            penalise_logits as penalise_logits_triton,
        )

        check_last_dim_dense("logits", logits)
        return penalise_logits_triton(*arguments)
    return cpu_sampling.penalise_logits(*arguments)


def _check_counts(
    name: str, tensor: torch.Tensor, logits: torch.Tensor, dtypes: tuple[torch.dtype, ...]
) -> None:
    check_shape(name, tensor, logits.shape)
    check_last_dim_dense(name, tensor)
    if tensor.dtype not in dtypes or tensor.device != logits.device:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(
            f"{name}: expected {wanted} on {logits.device}, got {tensor.dtype} on {tensor.device}"
        )
