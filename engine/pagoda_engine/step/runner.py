"""Runs one step's batch on the device: host lists in, sampled tokens out.

Knows tensors, the model and the KV cache. Knows nothing of queues or budgets.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.config import EngineConfig
from pagoda_engine.device import GraphCapture, Recorder, Work
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling import SampleRow, ScoredRows, plan_rows, sample, score
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.step.block_tables import BlockTables
from pagoda_engine.step.decode_graphs import DecodeGraphs, Progress, chosen_sizes
from pagoda_engine.step.inputs import KNOWN, StepInputs, flatten
from pagoda_engine.step.part_tables import part_tables
from pagoda_kernels import AttentionBatch, plan_attention
from pagoda_kernels.cut import Cut
from pagoda_kernels.host_copy import to_device

OnLayer = Callable[[int, Recorder], None]
"""(layer whose KV was launched, recorder of the step)."""
StepForward = Callable[[Recorder], tuple[torch.Tensor, list[torch.Tensor]]]
"""Returns the logits of what is sampled, and the tensors of embeddings and of `score`."""
MAX_SCORED_ROWS = 256
"""Prompt tokens whose logits are there at a time."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step that is ready to be queued.

    Attributes:
        work: for the device's queue; returns the tensors of `sample`, float32 ``[E, hidden]``
            embeddings if there are any, and then the tensors of `score`.
        rows: as sampled, in the order of the step's tokens.
        row_of: of each token that is sampled its row: in the order of the batch, and of an entry
            first its next token, then those behind its proposed ones.
        has_proposed: an entry has more than one of these.
        num_embedded: E, entries that ``embeds``.
        scored: prompt tokens whose logprobs are wanted; None if there are none.
        is_graph: the forward is a replay.
    """

    work: Work
    rows: list[SampleRow]
    row_of: list[int]
    has_proposed: bool
    num_embedded: int
    scored: ScoredRows | None
    is_graph: bool


class Runner:
    """The model on its device. Remembers the tokens of the step launched last."""

    def __init__(
        self,
        model: LoadedModel,
        kv_cache: KvCache,
        config: EngineConfig,
        *,
        capture: GraphCapture | None,
        max_model_len: int,
        overlaps: bool,
    ) -> None:
        """Allocate what lasts.

        Args:
            model: its device is the runner's.
            kv_cache: on the same device.
            config: limits.
            capture: None for no graphs.
            max_model_len: bounds a block table.
            overlaps: a step is launched before the tokens of the one before are read.
        """
        self._overlaps = overlaps
        self._decoder = model.decoder
        self._device = model.device
        self._kv_cache = kv_cache
        # Start-up has measured what the logits of so many rows take.
        self._max_scored_rows = min(config.max_num_seqs, MAX_SCORED_ROWS)
        self._last_tokens = torch.zeros(config.max_num_rows, dtype=torch.int64, device=model.device)
        self._block_tables = BlockTables(-(-max_model_len // config.block_size))
        self._graphs = None
        if capture is not None:
            self._graphs = DecodeGraphs(
                model.decoder,
                kv_cache,
                self._last_tokens,
                capture,
                dtype=model.dtype,
                sizes=config.graph_batch_sizes or chosen_sizes(config.max_num_seqs),
                max_model_len=max_model_len,
            )

    def capture(self, progress: Progress) -> None:
        """Capture all graphs, if this runner has any."""
        if self._graphs is not None:
            self._graphs.capture_all(progress)

    def prepare(
        self,
        batch: SequenceOf[ScheduledSequence],
        rows: list[SampleRow],
        *,
        copies: SequenceOf[tuple[int, int]] = (),
        on_layer: OnLayer | None = None,
        cut: Cut | None = None,
    ) -> PreparedStep:
        """Put what a batch needs on the device. Reads nothing of it afterwards.

        Args:
            batch: not launched yet.
            rows: ``num_rows`` for each entry, in order.
            copies: (from, to) of KV blocks that the work begins with; no block is both.
            on_layer: called by the work after each layer; never by a graph.
            cut: may end the work by CutShortError before a layer; only without a graph.
        """
        if self._graphs is not None and self._graphs.fits(batch):
            return self._replayed(self._graphs, batch, rows, copies)
        inputs = flatten(batch)
        tables = self._block_tables.of([entry.sequence for entry in batch])
        scored = ScoredRows.of(inputs.scored_token_ids, inputs.scored_nums, self._device)
        work = self._work(self._eager(inputs, tables, scored, on_layer, cut), rows, copies)
        return PreparedStep(
            work,
            rows,
            row_of=[*range(len(rows))],
            has_proposed=any(entry.proposed for entry in batch),
            num_embedded=len(inputs.embedded),
            scored=scored,
            is_graph=False,
        )

    def _replayed(
        self,
        graphs: DecodeGraphs,
        batch: SequenceOf[ScheduledSequence],
        rows: list[SampleRow],
        copies: SequenceOf[tuple[int, int]],
    ) -> PreparedStep:
        row_of, forward = graphs.prepare(batch)
        if len(rows) == len(row_of):
            rows = [row for _, row in sorted(zip(row_of, rows, strict=True), key=_first)]
            work = self._work(lambda _: (forward(), []), rows, copies)
        else:  # most tokens of a prompt are not sampled
            (sampled,) = to_device([np.array(_sampled(row_of, batch), np.int64)], self._device)
            row_of = [*range(len(rows))]
            work = self._work(lambda _: (forward().index_select(0, sampled), []), rows, copies)
        return PreparedStep(
            work,
            rows,
            row_of,
            has_proposed=any(entry.proposed for entry in batch),
            num_embedded=0,
            scored=None,
            is_graph=True,
        )

    def _eager(
        self,
        inputs: StepInputs,
        tables: npt.NDArray[np.int32],
        scored: ScoredRows | None,
        on_layer: OnLayer | None,
        cut: Cut | None,
    ) -> StepForward:
        num_sampled = len(inputs.logit_rows)
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "token_ids": np.array(inputs.token_ids, np.int64),
            "positions": np.array(inputs.positions, np.int32),  # as graphs have them: one kernel
        }
        if inputs.has_unread:
            arrays["previous_rows"] = np.array(inputs.previous_rows, np.int64)
        if num_sampled < len(inputs.token_ids):
            arrays["logit_rows"] = np.array(inputs.logit_rows + inputs.scored_rows, np.int64)
        if inputs.embedded:
            arrays["embedded"] = np.array(inputs.embedded, np.int64)
        if inputs.has_adapters:
            arrays["adapters"] = np.array(inputs.adapters, np.int32)
        on_device = dict(zip(arrays, to_device([*arrays.values()], self._device), strict=True))
        plan = self._plan(inputs, tables)
        last_rows = None
        is_some = "logit_rows" in arrays and inputs.logit_rows and not inputs.scored_rows
        if is_some and self._decoder.takes_last_rows:
            sequences, of_rows = inputs.of_logit_rows()
            last_rows = self._plan(of_rows, tables[sequences])

        def forward(recorder: Recorder) -> tuple[torch.Tensor, list[torch.Tensor]]:
            ids, previous_rows = on_device["token_ids"], on_device.get("previous_rows")
            if previous_rows is not None:
                previous = self._last_tokens.index_select(0, previous_rows.clamp(min=0))
                ids = torch.where(previous_rows == KNOWN, ids, previous)
            report = None if on_layer is None else lambda layer: on_layer(layer, recorder)
            hidden = self._decoder.hidden(
                ids,
                on_device["positions"],
                plan,
                self._kv_cache,
                on_device.get("logit_rows"),
                on_layer=report,
                adapters=on_device.get("adapters"),
                cut=cut,
                last_rows=last_rows,
            )
            logits = self._decoder.logits(hidden[:num_sampled])
            others = []
            if inputs.embedded:
                embedded = hidden.index_select(0, on_device["embedded"])
                others.append(F.normalize(embedded.float(), dim=-1))
            if scored is not None:
                others += score(
                    hidden[num_sampled:],
                    self._decoder.logits,
                    scored,
                    max_rows=self._max_scored_rows,
                )
            return logits, others

        return forward

    def _plan(self, inputs: StepInputs, tables: npt.NDArray[np.int32]) -> AttentionBatch:
        places = self._kv_cache.part_places
        return plan_attention(
            seqlens_q=inputs.seqlens_q,
            context_lens=inputs.context_lens,
            block_tables=inputs.block_tables,
            block_size=self._kv_cache.layout.block_size,
            device=self._device,
            tables=tables,
            other_tables=part_tables(places, inputs.block_tables, inputs.windowed),
        )

    def _work(
        self,
        forward: StepForward,
        rows: list[SampleRow],
        copies: SequenceOf[tuple[int, int]],
    ) -> Work:
        plan = plan_rows(rows, self._device)
        sides = [self._kv_cache.places_of(block_ids) for block_ids in zip(*copies, strict=True)]
        copied = [np.array(places, np.int64).flatten() for places in sides]
        copied_on_device = to_device(copied, self._device) if copied else []

        def work(recorder: Recorder) -> list[torch.Tensor]:
            with torch.inference_mode():
                recorder.mark()
                if copied_on_device:
                    self._kv_cache.duplicate_blocks(*copied_on_device)
                logits, others = forward(recorder)
                recorder.mark()
                tensors = sample(logits, plan) if rows else []
                if rows and self._overlaps:
                    self._last_tokens[: len(rows)].copy_(tensors[0].clamp(min=0))
                recorder.mark()
            return tensors + others

        return work


def _first(pair: tuple[int, SampleRow]) -> int:
    return pair[0]


def _sampled(row_of: list[int], batch: SequenceOf[ScheduledSequence]) -> list[int]:
    """Return the rows whose logits are wanted, of the rows of all tokens of a batch."""
    rows, end = list[int](), 0
    for entry in batch:
        end += entry.num_new_tokens
        rows += row_of[end - entry.num_rows : end]
    return rows
