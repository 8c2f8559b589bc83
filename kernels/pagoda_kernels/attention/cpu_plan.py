"""What the CPU attention gathers in one step: slots, masks, scratch memory, shared by all layers.

Knows block tables and lengths. Layouts depend on the layers' head shape and window, so they are
built when the first layer asks and kept until the step ends. Not thread safe: one step, one thread.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int32]

SCRATCH_BYTES = 1 << 20
"""Gathered K or V kept per decode group; more leaves the per-core cache and gathers get slower."""


ROWS_PER_SPAN = 64
"""Query rows attended at once in prefill: fewer skip more masked keys, more amortise the call."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one new token each whose KV is gathered to one common length N.

    Attributes:
        rows: ``[S]`` int64, token row of each sequence in q.
        slots: ``[S * N]`` int64, KV slots, a sequence's own first slot where it has no token.
        is_padding: ``[S, N]`` bool, True where there is no token; None if no sequence is padded.
        num_tokens: N.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    is_padding: torch.Tensor | None
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """New tokens ``[start, end)`` of one sequence, which follow `num_computed` tokens in the cache.

    Attributes:
        start: first token row in q.
        end: one past the last token row.
        first: position of the first KV token gathered, 0 without a sliding window.
        num_computed: position of token row `start`.
        slots: ``[N]`` int64, KV slots of positions ``[first, first + N)``.
    """

    start: int
    end: int
    first: int
    num_computed: int
    slots: torch.Tensor


def gathered_length(num_tokens: int) -> int:
    """Length a context is padded to: at most 31 tokens more, above 128 at most a quarter more.

    A function of the context alone, so that fp32 results do not depend on the rest of the batch.
    """
    step = max(32, 1 << max(0, (num_tokens - 1).bit_length() - 3))
    return -(-num_tokens // step) * step


def _staircase(num_rows: int, longest: int, window: int | None) -> torch.Tensor:
    """``[num_rows, longest + num_rows]``: key column `longest` is the one query row 0 sees last."""
    distance = torch.arange(-longest, num_rows)[None] - torch.arange(num_rows)[:, None]
    hidden = distance > 0
    if window is not None:
        hidden |= distance <= -window
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


class CpuPlan:
    """Gather layouts of one step, built on first use."""

    def __init__(
        self,
        cu_seqlens_q: IntArray,
        seqlens_q: IntArray,
        context_lens: IntArray,
        block_tables: IntArray,
        block_size: int,
    ) -> None:
        """Keep the host arrays; they must not change afterwards."""
        self._starts = cu_seqlens_q
        self._new = seqlens_q
        self._context = context_lens
        self._tables = block_tables
        self._block_size = block_size
        self._decode: dict[tuple[int, int], list[DecodeGroup]] = {}
        self._prefill: dict[int, list[PrefillSpan]] = {}
        self._bias: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._staircase: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._scratch: dict[str, torch.Tensor] = {}

    def current(self) -> "CpuPlan":
        """Return this plan: what it was made from does not change."""
        return self

    def decode_groups(self, token_bytes: int, window: int | None) -> list[DecodeGroup]:
        """Groups that cover every sequence with one new token. `token_bytes`: K of one token."""
        key = (token_bytes, window or 0)
        if key not in self._decode:
            self._decode[key] = self._build_decode(max(1, SCRATCH_BYTES // token_bytes), window)
        return self._decode[key]

    def prefill_spans(self, window: int | None) -> list[PrefillSpan]:
        """One span for every sequence with more than one new token."""
        key = window or 0
        if key not in self._prefill:
            self._prefill[key] = [
                self._build_span(int(row), window) for row in np.flatnonzero(self._new > 1)
            ]
        return self._prefill[key]

    def padding_bias(self, group: DecodeGroup, dtype: torch.dtype) -> torch.Tensor | None:
        """``[S, 1, 1, N]`` of 0 and -inf to add to the scores; None if nothing is padded."""
        if group.is_padding is None:
            return None
        key = (id(group), dtype)
        if key not in self._bias:
            bias = torch.zeros(group.is_padding.shape, dtype=dtype)
            self._bias[key] = bias.masked_fill_(group.is_padding, float("-inf"))[:, None, None]
        return self._bias[key]

    def causal_bias(
        self, num_rows: int, offset: int, window: int | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """``[num_rows, offset + num_rows]`` of 0 and -inf: query r sees keys up to ``offset + r``.

        With a window, only the last `window` of those. All results are views of one matrix.
        """
        key = (window or 0, dtype)
        longest = int(self._context.max())
        bias = self._staircase.get(key)
        if bias is None:
            bias = _staircase(ROWS_PER_SPAN, longest, window).to(dtype)
            self._staircase[key] = bias
        return bias[:num_rows, longest - offset : longest + num_rows]

    def scratch(self, name: str, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised ``[num_rows, width]`` that the next call with the same name overwrites."""
        rows = self._scratch.get(name)
        if (
            rows is None
            or rows.dtype != dtype
            or rows.shape[1] != width
            or rows.shape[0] < num_rows
        ):
            rows = torch.empty(num_rows, width, dtype=dtype)
            self._scratch[name] = rows
        return rows[:num_rows]

    def _build_decode(self, max_tokens: int, window: int | None) -> list[DecodeGroup]:
        rows = np.flatnonzero(self._new == 1)
        first = self._first_visible(rows, window)
        lengths = self._context[rows] - first
        padded = np.array([gathered_length(n) for n in lengths.tolist()], dtype=np.int64)
        groups = []
        for length in np.unique(padded).tolist():
            members = np.flatnonzero(padded == length)
            size = max(1, max_tokens // length)
            for begin in range(0, len(members), size):
                part = members[begin : begin + size]
                groups.append(
                    self._decode_group(rows[part], first[part], lengths[part], int(length))
                )
        return groups

    def _decode_group(
        self,
        rows: npt.NDArray[np.intp],
        first: IntArray,
        lengths: IntArray,
        length: int,
    ) -> DecodeGroup:
        offsets = np.arange(length)[None]
        is_padding = offsets >= lengths[:, None]
        positions = first[:, None] + np.where(is_padding, 0, offsets)
        return DecodeGroup(
            rows=torch.from_numpy(self._starts[rows].astype(np.int64)),
            slots=torch.from_numpy(self._slots(rows[:, None], positions).ravel()),
            is_padding=torch.from_numpy(is_padding) if is_padding.any() else None,
            num_tokens=length,
        )

    def _build_span(self, row: int, window: int | None) -> PrefillSpan:
        start, end = int(self._starts[row]), int(self._starts[row + 1])
        context = int(self._context[row])
        num_computed = context - (end - start)
        first = 0 if window is None else max(0, num_computed + 1 - window)
        slots = self._slots(np.intp(row), np.arange(first, context))
        return PrefillSpan(start, end, first, num_computed, torch.from_numpy(slots))

    def _first_visible(self, rows: npt.NDArray[np.intp], window: int | None) -> IntArray:
        if window is None:
            return np.zeros(len(rows), dtype=np.int32)
        return np.maximum(0, self._context[rows] - window)

    def _slots(
        self, rows: npt.NDArray[np.intp] | np.intp, positions: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.int64]:
        blocks = self._tables[rows, positions // self._block_size].astype(np.int64)
        slots: npt.NDArray[np.int64] = blocks * self._block_size + positions % self._block_size
        return slots


class RefilledPlan:
    """The plan of a batch of decodes whose buffers are refilled: made anew when they changed."""

    def __init__(
        self,
        cu_seqlens_q: torch.Tensor,
        context_lens: torch.Tensor,
        block_tables: torch.Tensor,
        block_size: int,
    ) -> None:
        """Keep the buffers, which are the caller's."""
        self._buffers = cu_seqlens_q.numpy(), context_lens.numpy(), block_tables.numpy()
        self._block_size = block_size
        self._seen: tuple[IntArray, ...] | None = None
        self._plan: CpuPlan | None = None

    def current(self) -> CpuPlan:
        """Return the plan of what the buffers hold now; the same one while they hold it."""
        seen = self._seen
        if self._plan is None or seen is None or not all(map(np.array_equal, seen, self._buffers)):
            starts, context, tables = self._seen = tuple(kept.copy() for kept in self._buffers)
            self._plan = CpuPlan(starts, np.diff(starts), context, tables, self._block_size)
        return self._plan
