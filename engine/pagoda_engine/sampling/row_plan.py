"""What sampling does to each row of one step's logits, on the device before the logits are there.

Knows parameters and rows. Knows nothing of sequences or of when they end.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagoda_engine.sampling.repeat_penalties import Changes
from pagoda_engine.sampling.sampling_state import SamplingState, TokenCounts
from pagoda_engine.token_mask import TokenBits
from pagoda_kernels import LogitBias, SamplingRows, SeenTokens, plan_sampling
from pagoda_kernels.host_copy import to_device


@dataclass(slots=True, eq=False)
class SampleRow:
    """One row as the step loop sees it when it launches the step; nobody changes it.

    Not frozen: a step makes one for each of its rows, and that would take three times as long.

    Attributes:
        state: of the sequence; its counts must be there if it has penalties.
        index: output index of the token, for the random number and ``min_tokens``; means nothing to
            a row that takes the largest logit without those.
        allowed: int32 ``[ceil(V / 32)]``, ``min_tokens`` considered; None for all tokens.
        changes: what penalties for repetitions add to logits; None without.
    """

    state: SamplingState
    index: int
    allowed: TokenBits | None = None
    changes: Changes | None = None

    @property
    def must_not_stop(self) -> bool:
        """Whether the token is one of the first ``min_tokens``, and no mask says so."""
        is_early = self.allowed is None and self.index < self.state.params.min_tokens
        return is_early and bool(self.state.stop_token_ids)

    @property
    def is_plain(self) -> bool:
        """Whether it takes the logits as they are, and its token is all that is wanted."""
        state = self.state
        if not state.is_plain or self.allowed is not None:
            return False
        return not state.params.min_tokens or not self.must_not_stop


@dataclass(frozen=True, slots=True)
class Penalties:
    """Rows with penalties whose tokens are counted on the device.

    Attributes:
        rows: int64 ``[P]``.
        factors: float32 ``[3, P]``: repetition, frequency, presence.
        counts: P token counts, which the step reads and then adds its tokens to.
    """

    rows: torch.Tensor
    factors: torch.Tensor
    counts: tuple[TokenCounts, ...]


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Rows whose logprobs are wanted.

    Attributes:
        rows: int64 ``[L]``.
        num_top: how many of the likeliest at most.
        token_ids: int64 ``[L, K]``, padded: tokens that rows ask for; None if no row does.
    """

    rows: torch.Tensor
    num_top: int
    token_ids: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Masks:
    """Rows with a mask.

    Attributes:
        rows: int64 ``[M]``.
        allowed: int32 ``[M, ceil(V / 32)]``.
        bits_of_byte: int64 ``[256]``; each is eight bools, one for each bit of its index.
    """

    rows: torch.Tensor
    allowed: torch.Tensor
    bits_of_byte: torch.Tensor


@dataclass(frozen=True, slots=True)
class RowPlan:
    """All rows of a step; tensors on the device of the logits.

    Attributes:
        draw: None if every row is greedy.
        penalties: None if no row has any of which the device counts the tokens.
        seen: of each row whose tokens the host counts (row, its tokens), to which the step adds
            the one it chooses.
        biased: of each row with a bias (row, bias), which its sequence holds.
        repeated: (row, token, penalty), each ``[R]``; None if no row has repeated itself.
        forbidden: (row, token), each ``[F]``, that get no chance; None if there are none.
        masks: None if no row has one.
        logprobs: None if nobody asked.
    """

    draw: SamplingRows | None = None
    penalties: Penalties | None = None
    seen: tuple[tuple[int, SeenTokens], ...] = ()
    biased: tuple[tuple[int, LogitBias], ...] = ()
    repeated: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    forbidden: tuple[torch.Tensor, torch.Tensor] | None = None
    masks: Masks | None = None
    logprobs: LogprobRows | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether the tokens come from other logits than the model's."""
        return bool(self.seen or self.biased) or self.needs_copy

    @property
    def needs_copy(self) -> bool:
        """Whether something else than biases and tokens that the host counts changes them."""
        changes = (self.penalties, self.repeated, self.forbidden, self.masks)
        return any(change is not None for change in changes)


_PLAIN = RowPlan()
_BITS_OF_BYTE = np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
).view(np.int64)[:, 0]


def plan_rows(rows: Sequence[SampleRow], device: torch.device) -> RowPlan:
    """Put what the rows ask for on the device, without waiting for it."""
    draw = _draw(rows, device)
    if all(row.is_plain for row in rows):
        return _PLAIN if draw is None else RowPlan(draw=draw)
    return RowPlan(
        draw=draw,
        penalties=_penalties(rows, device),
        seen=_seen(rows),
        biased=_biased(rows, device),
        repeated=_repeated(rows, device),
        forbidden=_forbidden(rows, device),
        masks=_masks(rows, device),
        logprobs=_logprobs(rows, device),
    )


def plan_guesses(rows: Sequence[SampleRow], device: torch.device) -> RowPlan:
    """Put on the device what moves a row's choice most: biases and the draw.

    For tokens that are only proposed: what masks, ``min_tokens`` and log probabilities take is
    spared.
    """
    return RowPlan(draw=_draw(rows, device), biased=_biased(rows, device))


def _biased(rows: Sequence[SampleRow], device: torch.device) -> tuple[tuple[int, LogitBias], ...]:
    return tuple(
        (i, row.state.bias(device)) for i, row in enumerate(rows) if row.state.params.logit_bias
    )


def _draw(rows: Sequence[SampleRow], device: torch.device) -> SamplingRows | None:
    states = [row.state for row in rows]
    if all(state.is_greedy for state in states):
        return None
    return plan_sampling([s.column for s in states], [row.index for row in rows], device)


def _penalties(rows: Sequence[SampleRow], device: torch.device) -> Penalties | None:
    counted = [(i, row.state.counts) for i, row in enumerate(rows) if row.state.has_penalties]
    assert all(counts is not None for _, counts in counted)
    chosen = [(i, counts) for i, counts in counted if isinstance(counts, TokenCounts)]
    if not chosen:
        return None
    params = [rows[i].state.params for i, _ in chosen]
    factors = [
        [p.repetition_penalty for p in params],
        [p.frequency_penalty for p in params],
        [p.presence_penalty for p in params],
    ]
    arrays = np.array([i for i, _ in chosen], np.int64), np.array(factors, np.float32)
    row_tensor, factor_tensor = to_device(arrays, device)
    return Penalties(row_tensor, factor_tensor, tuple(counts for _, counts in chosen))


def _seen(rows: Sequence[SampleRow]) -> tuple[tuple[int, SeenTokens], ...]:
    counted = ((i, row.state.counts) for i, row in enumerate(rows) if row.state.has_penalties)
    return tuple((i, counts) for i, counts in counted if isinstance(counts, SeenTokens))


def _repeated(
    rows: Sequence[SampleRow], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    chosen = [(i, row.changes) for i, row in enumerate(rows) if row.changes is not None]
    if not any(len(ids) for _, (ids, _) in chosen):
        return None
    row_ids = np.repeat([i for i, _ in chosen], [len(ids) for _, (ids, _) in chosen])
    token_ids, values = (
        np.concatenate(column) for column in zip(*(c for _, c in chosen), strict=True)
    )
    row_tensor, token_tensor, value_tensor = to_device([row_ids, token_ids, values], device)
    return row_tensor, token_tensor, value_tensor


def _forbidden(
    rows: Sequence[SampleRow], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    chosen = [(i, row.state.stops(device)) for i, row in enumerate(rows) if row.must_not_stop]
    if not chosen:
        return None
    token_ids = [ids for _, ids in chosen]
    return _rows_of([i for i, _ in chosen], token_ids), torch.cat(token_ids)


def _rows_of(rows: Sequence[int], entries: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return int64 row numbers, each as often as its entries are many; waits for no device."""
    sizes = [len(entry) for entry in entries]
    arrays = np.array(rows, np.int64), np.array(sizes, np.int64)
    row_ids, repeats = to_device(arrays, entries[0].device)
    return torch.repeat_interleave(row_ids, repeats, output_size=sum(sizes))


def _masks(rows: Sequence[SampleRow], device: torch.device) -> Masks | None:
    chosen = [(i, row.allowed) for i, row in enumerate(rows) if row.allowed is not None]
    if not chosen:
        return None
    row_ids, allowed = zip(*chosen, strict=True)
    arrays = np.array(row_ids, np.int64), np.stack(allowed), _BITS_OF_BYTE
    return Masks(*to_device(arrays, device))


def _logprobs(rows: Sequence[SampleRow], device: torch.device) -> LogprobRows | None:
    wanted = [
        (i, n) for i, row in enumerate(rows) if (n := row.state.params.num_logprobs) is not None
    ]
    if not wanted:
        return None
    row_ids, nums = zip(*wanted, strict=True)
    asked = [rows[i].state.params.logprob_token_ids for i in row_ids]
    arrays = [np.array(row_ids, np.int64)]
    if any(asked):
        arrays.append(np.array([*itertools.zip_longest(*asked, fillvalue=0)], np.int64).T.copy())
    rows_on_device, *token_ids = to_device(arrays, device)
    return LogprobRows(rows_on_device, max(nums), token_ids[0] if token_ids else None)
