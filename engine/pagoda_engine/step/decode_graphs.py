"""Forwards of few tokens, captured once per number of rows and replayed over persistent buffers.

A step then costs the host one small copy and one launch. What has several new tokens, a decode that
verifies proposed ones or a short prompt, has a row for each, as if they were decodes of as many
sequences with the same blocks: the KV of all rows is written before any is attended to. Knows the
model, its inputs and padding. Knows nothing of sampling or of when sequences end.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.device import Forward, GraphCapture
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.scheduler.scheduled import IS_PREFILL, NUM_NEW_TOKENS, ScheduledSequence
from pagoda_engine.scheduler.sequence import NO_ADAPTER, NULL_BLOCK
from pagoda_engine.scheduler.step_cost import attended_tokens
from pagoda_engine.step.inputs import KNOWN
from pagoda_engine.step.table_rows import TableRows
from pagoda_kernels import PAD_SLOT, decode_batch
from pagoda_kernels.host_copy import to_device

Progress = Callable[[int, int], None]

MAX_PROMPT_ATTENTION = 65_536
"""KV tokens that the rows of prompts, and of forced tokens, may read in all.

Each reads its context for itself, which a step that is launched kernel by kernel reads once. As
many as 64 decodes of 1,024, which took 0.08 ms for each layer of an 8B model on an H200, where
launching a layer took half a millisecond.
"""


class DecodeGraphs:
    """Captured forwards of up to `sizes[-1]` rows, each a new token of a sequence."""

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: KvCache,
        last_tokens: torch.Tensor,
        capture: GraphCapture,
        *,
        dtype: torch.dtype,
        sizes: SequenceOf[int],
        max_model_len: int,
    ) -> None:
        """Allocate the buffers; `capture_all` makes the graphs.

        Args:
            decoder: the model.
            kv_cache: read and written by it.
            last_tokens: int64, tokens that the step launched before has sampled, by row.
            capture: on the same device.
            dtype: of the model's logits.
            sizes: numbers of rows to capture, ascending; a batch is padded to the next one.
            max_model_len: bounds a block table.
        """
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._last_tokens = last_tokens
        self._capture = capture
        self._sizes = tuple(sizes)
        self._max_model_len = max_model_len
        self._block_size = kv_cache.layout.block_size
        self._device = device = last_tokens.device
        num_columns = -(-max_model_len // self._block_size)
        self._rows = TableRows(num_columns)
        self._num_parts = kv_cache.layout.num_parts
        # Token, previous row, position, context length, and a slot for each part of a block; one
        # column for each row of a batch.
        (self.inputs,) = to_device([self._padding(self._sizes[-1])], device)
        self.block_tables = torch.zeros(
            (self._num_parts, self._sizes[-1], num_columns), dtype=torch.int32, device=device
        )
        self._row_starts = torch.arange(self._sizes[-1] + 1, dtype=torch.int32, device=device)
        # A graph keeps its output: one for each, of 256 sequences and 150k tokens, is 0.7 GB.
        self._logits = torch.empty(
            (self._sizes[-1], decoder.description.vocab_size),
            dtype=dtype,
            device=device,
        )
        self._replays: dict[int, Forward] = {}

    @torch.inference_mode()
    def capture_all(self, progress: Progress) -> None:
        """Capture every size, the largest first: the others then fit in its memory.

        Args:
            progress: called with (sizes captured, sizes in all).
        """
        for done, size in enumerate(reversed(self._sizes)):
            progress(done, len(self._sizes))
            forward = functools.partial(self._forward, size)
            self._replays[size] = self._capture.capture(forward)
        progress(len(self._sizes), len(self._sizes))

    def fits(self, batch: SequenceOf[ScheduledSequence]) -> bool:
        """Tell whether a batch wants nothing but logits of tokens that are not too many.

        Graphs are captured without adapters, whose kernels the other steps would wait for too.
        """
        if not self._replays or sum(map(NUM_NEW_TOKENS, batch)) > self._sizes[-1]:
            return False
        # Most are decodes of one token, of which nothing need be asked.
        others = [e for e in batch if NUM_NEW_TOKENS(e) > 1 or IS_PREFILL(e)]
        attention = sum(
            attended_tokens(entry.first_token, entry.num_new_tokens)
            for entry in others
            if entry.num_new_tokens > entry.num_rows  # of a prompt, or forced by a grammar
        )
        return (
            attention <= MAX_PROMPT_ATTENTION
            and not any(entry.embeds or entry.scored for entry in others)
            and all(entry.sequence.adapter_slot == NO_ADAPTER for entry in batch)
        )

    def prepare(self, batch: SequenceOf[ScheduledSequence]) -> tuple[list[int], Forward]:
        """Take a snapshot of a batch that `fits` and is not launched yet.

        Returns:
            The row of each token in the logits, in the order of the batch and of an entry's tokens,
            and the forward: logits ``[rows, V]`` that stay until the next replay.
        """
        first_rows, update = self._rows.assign([entry.sequence for entry in batch])
        rows, sources = _rows_behind(first_rows, batch)
        num_rows = len(rows)
        size = next(size for size in self._sizes if size >= num_rows)
        inputs = self._padding(size)
        columns = [
            self._column(entry, position)
            for entry in batch
            for position in range(entry.first_token, entry.num_context_tokens)
        ]
        inputs[:, rows] = np.array(columns, np.int32).T
        positions = np.array(update.positions, np.int64)
        block_ids = np.array(self._places(update.block_ids), np.int32).T
        arrays = inputs, positions, block_ids, np.array(sources, np.int64)
        staged, at, new, shared = to_device(arrays, self._device)

        def forward() -> torch.Tensor:
            self.inputs[:, :size].copy_(staged)
            tables = self.block_tables
            if update.positions:
                tables.view(self._num_parts, -1).index_copy_(1, at, new)
            if sources:
                behind = tables[:, num_rows - len(sources) : num_rows]
                behind.copy_(tables.index_select(1, shared))
            return self._replays[size]()[:num_rows]

        return rows, forward

    def _places(self, block_ids: SequenceOf[int]) -> list[list[int]]:
        """Return where the parts of blocks are; parts that are not held, any that are there."""
        places = self._kv_cache.places_of(block_ids)
        return [[max(place, NULL_BLOCK) for place in block] for block in places]

    def _padding(self, size: int) -> npt.NDArray[np.int32]:
        """Inputs of rows that belong to nobody: a token that is read from its slot, not written."""
        column = np.array([0, KNOWN, 0, 1, *[PAD_SLOT] * self._num_parts], np.int32)
        return np.repeat(column[:, None], size, axis=1)

    def _column(self, entry: ScheduledSequence, position: int) -> tuple[int, ...]:
        """Return the inputs of one token of an entry."""
        sequence, token_id, previous_row = entry.sequence, 0, KNOWN
        if position < len(sequence.token_ids):
            token_id = sequence.token_ids[position]
        elif entry.proposed:  # all tokens before these are known
            token_id = entry.proposed[position - len(sequence.token_ids)]
        else:
            previous_row = sequence.unread_row
        block, offset = divmod(position, self._block_size)
        (places,) = self._kv_cache.places_of([sequence.block_ids[block]])
        return (
            token_id,
            previous_row,
            position,
            position + 1,
            *(place * self._block_size + offset for place in places),
        )

    def _forward(self, size: int) -> torch.Tensor:
        token_ids, previous_rows, positions, context_lens, *slots = self.inputs[:, :size].unbind()
        previous = self._last_tokens.index_select(0, previous_rows.clamp(min=0))
        batch, *others = (
            decode_batch(
                cu_seqlens_q=self._row_starts[: size + 1],
                context_lens=context_lens,
                block_tables=block_tables[:size],
                slot_mapping=slot_mapping.long(),
                block_size=self._block_size,
                max_context_len=self._max_model_len,
            )
            for block_tables, slot_mapping in zip(self.block_tables, slots, strict=True)
        )
        logits = self._decoder.forward(
            torch.where(previous_rows == KNOWN, token_ids, previous),
            positions,
            replace(batch, others=tuple(others)),
            self._kv_cache,
            None,
        )
        return self._logits[:size].copy_(logits)


def _rows_behind(
    first_rows: list[int], batch: SequenceOf[ScheduledSequence]
) -> tuple[list[int], list[int]]:
    """Put the rows of further tokens behind those that sequences have from step to step.

    Returns:
        The row of each token, and of each row of a further one the row whose blocks are its own.
    """
    if sum(map(NUM_NEW_TOKENS, batch)) == len(batch):  # most steps
        return first_rows, []
    rows, sources, num_rows = list[int](), list[int](), len(batch)
    for row, entry in zip(first_rows, batch, strict=True):
        num_further = entry.num_new_tokens - 1
        rows += [row, *range(num_rows, num_rows + num_further)]
        sources += [row] * num_further
        num_rows += num_further
    return rows, sources


def chosen_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return batch sizes worth a graph: close together where few rows more cost much."""
    largest = min(max_num_seqs, 512)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 512, 16)]
    return (*(size for size in sizes if size < largest), largest)
