"""Tokens of rows of logits, chosen by the native library.

Knows pointers. Knows nothing of top-n-sigma, typical-p and XTC, which `cpu.py` has.
"""

from collections.abc import Sequence

import torch

from pagoda_kernels.native.library import SCRATCH_BYTES, NativeLibrary
from pagoda_kernels.native.structures import SampleJob
from pagoda_kernels.sampling.logit_bias import LogitBias
from pagoda_kernels.sampling.rows import SamplingRows
from pagoda_kernels.sampling.seen_tokens import SeenTokens

NO_BIASES, NONE_SEEN = bytes(24), bytes(40)
"""Records of rows without, as long as the others."""


def can_sample(library: NativeLibrary, logits: torch.Tensor) -> bool:
    """Tell whether the threads' scratch memory holds a row of these logits, and the dtype is known.

    Args:
        library: that is to sample.
        logits: ``[S, V]`` on the CPU, rows dense.
    """
    is_known = logits.dtype in (torch.bfloat16, torch.float32)
    return is_known and library.sample_bytes(logits.shape[1]) <= SCRATCH_BYTES


def sample_rows(
    library: NativeLibrary,
    logits: torch.Tensor,
    rows: SamplingRows | None,
    biased: Sequence[tuple[int, LogitBias]] = (),
    seen: Sequence[tuple[int, SeenTokens]] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (token ids, whether valid), as the operators `sample_tokens` and `largest_tokens` do.

    Args:
        library: that can sample these logits.
        logits: ``[S, V]``, rows dense; read alone.
        rows: S; None takes the largest of each. Truncations that the library does not know are
            not done.
        biased: (row, what is added to its logits), no row twice.
        seen: (row, tokens for its penalties), no row twice.

    Raises:
        ValueError: a token with a bias or a penalty is beyond the vocabulary.
    """
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    is_valid = torch.empty(num_rows, dtype=torch.bool)
    job = SampleJob(
        logits=logits.data_ptr(),
        row_stride=logits.stride(0),
        num_rows=num_rows,
        vocab_size=vocab_size,
        parameters=None if rows is None else rows.storage.data_ptr(),
        token_ids=token_ids.data_ptr(),
        is_valid=is_valid.data_ptr(),
        biases=_records(biased, NO_BIASES, logits),
        seen=_records(seen, NONE_SEEN, logits),
        is_bf16=logits.dtype is torch.bfloat16,
    )
    library.sample(library.threads(torch.get_num_threads()), job)
    return token_ids, is_valid


def _records(
    changed: Sequence[tuple[int, LogitBias | SeenTokens]], none: bytes, logits: torch.Tensor
) -> bytes | None:
    """Return a record for each row; None if no row has any."""
    if not changed:
        return None
    num_rows, vocab_size = logits.shape
    records = [none] * num_rows
    for row, change in changed:
        if change.end > vocab_size:
            raise ValueError(f"token ids: expected below {vocab_size}, got {change.end - 1}")
        records[row] = change.record
    return b"".join(records)
