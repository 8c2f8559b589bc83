"""Launches steps on the device and reads them back, the oldest first.

Knows the scheduler's steps, the runner and the device's queue. Knows nothing of who asks for steps.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from pagoda_engine.device import DeviceQueue
from pagoda_engine.drafting.drafter import Drafter
from pagoda_engine.errors import TokenMaskError
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling import SampleRow
from pagoda_engine.scheduler.scheduled import ScheduledSequence, ScheduledStep
from pagoda_engine.scheduler.scheduler import Scheduler
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.step.commit import commit_step, fail
from pagoda_engine.step.compute_time import share_out
from pagoda_engine.step.launched import LaunchedStep
from pagoda_engine.step.layer_export import LayerExport
from pagoda_engine.step.newcomers import Newcomers
from pagoda_engine.step.result import ComputedBlocks, FinishReason, SequenceOutput, StepStats
from pagoda_engine.step.runner import Runner
from pagoda_engine.step.sample_row import drawn_row, sample_rows
from pagoda_kernels.cut import CutShortError


class StepsInFlight:
    """Steps between their launch and their reading: more than one where the device works alone."""

    def __init__(
        self,
        scheduler: Scheduler,
        model: LoadedModel,
        runner: Runner,
        queue: DeviceQueue,
        *,
        drafter: Drafter | None,
        layer_export: LayerExport | None,
        newcomers: Newcomers,
        clock: Callable[[], float],
    ) -> None:
        """Begin with none.

        Args:
            scheduler: chooses each step, and is told what came of it.
            model: that rows are sampled from.
            runner: of the model.
            queue: to its device.
            drafter: that the scheduler drafts with, if it does.
            layer_export: hears of layers as they are launched; None: nobody asks for them.
            newcomers: for whom a step is given up.
            clock: seconds, for StepStats.
        """
        self._scheduler = scheduler
        self._model = model
        self._runner = runner
        self._queue = queue
        self._drafter = drafter
        self._layer_export = layer_export
        self._newcomers = newcomers
        self._clock = clock
        self._steps: deque[LaunchedStep] = deque()
        self._previous: LaunchedStep | None = None  # read last, unless the device idled since
        self._given_up_seconds = 0.0

    def __len__(self) -> int:
        """Steps that were launched and not read."""
        return len(self._steps)

    @property
    def is_full(self) -> bool:
        """Whether one must be read before the next is launched."""
        return len(self._steps) > self._queue.lag

    @property
    def adapters(self) -> set[bytes]:
        """Those that rows of a launched step use, also of sequences that have ended since."""
        batches = (step.batch for step in self._steps)
        return {entry.sequence.request.adapter for batch in batches for entry in batch}

    def take_given_up_seconds(self) -> float:
        """Return what steps took that were given up for newcomers since the last call."""
        seconds, self._given_up_seconds = self._given_up_seconds, 0.0
        return seconds

    def idle(self) -> None:
        """Note that the device has nothing to do: the time until the next step is no gap."""
        self._previous = None

    def launch(self, started: float) -> tuple[ScheduledStep, list[SequenceOutput]]:
        """Schedule a step and queue it on the device, if it computes anything.

        Args:
            started: by the clock, when the host began with it.

        Returns:
            What was scheduled, and the ends of those whose grammar fails, which are not in it.
        """
        draft_seconds = 0.0 if self._drafter is None else -self._drafter.seconds
        scheduled = self._scheduler.schedule()
        if self._drafter is not None:
            draft_seconds += self._drafter.seconds
        if not self._queue.lag and scheduled.has_imports:
            # A step is computed before it returns, and whoever imports must not wait for that.
            scheduled = replace(scheduled, batch=())
            self._scheduler.not_computed()
        scheduled_at = self._clock()
        with self._queue.preparing():
            batch, rows, failed = self._rows(scheduled.batch)
            if failed:
                scheduled = replace(scheduled, batch=batch)
            if not batch:
                return scheduled, failed
            export = self._layer_export
            on_layer = None if export is None else export.of_batch(batch)
            searches = [b for entry in batch if (b := entry[0].beams) is not None]
            copies = [pair for beams in searches for pair in beams.take_copies()]
            cut = None
            if on_layer is None and not self._queue.lag:
                cut = self._newcomers.begin(batch, self._scheduler.step_cost)
            step = self._runner.prepare(batch, rows, copies=copies, on_layer=on_layer, cut=cut)
        try:
            work = self._queue.submit(step.work)
        except CutShortError:
            self._given_up_seconds = self._newcomers.was_cut()
            self._scheduler.not_computed()
            self.idle()
            return replace(scheduled, batch=()), failed
        self._newcomers.end()
        num_sampled = 0
        for sequence, _, num_new_tokens, _, samples, proposed in batch:
            row, num_proposed = None, len(proposed)
            if samples:
                row = step.row_of[num_sampled]
                num_sampled += 1 + num_proposed
            sequence.launch(num_new_tokens, row, num_proposed)
        times = (started, scheduled_at, self._clock())
        self._steps.append(LaunchedStep(batch, step, work, times, draft_seconds))
        return scheduled, failed

    def read(
        self, num_preempted: int
    ) -> tuple[list[SequenceOutput], list[ComputedBlocks], StepStats]:
        """Wait for the oldest step, and let its sequences have what it brought.

        Args:
            num_preempted: since the step before was read.
        """
        launched = self._steps.popleft()
        started = self._clock()
        read = launched.read()
        read_at = self._clock()
        device_seconds = launched.device_seconds(self._previous)
        compute_ns = round(1e9 * sum(device_seconds))  # as StepStats has it
        unclaimed_ns = share_out(launched.batch, compute_ns)  # before any of them ends
        outputs, computed = commit_step(self._scheduler, launched.batch, read)
        stats = launched.stats(
            device_seconds,
            num_accepted=read.num_accepted,
            num_preempted=num_preempted,
            unclaimed_ns=unclaimed_ns,
            wait_seconds=read_at - started,
            commit_seconds=self._clock() - read_at,
        )
        self._previous = launched
        return outputs, computed, stats

    def _rows(
        self, batch: tuple[ScheduledSequence, ...]
    ) -> tuple[tuple[ScheduledSequence, ...], list[SampleRow], list[SequenceOutput]]:
        """Return the batch without those whose grammar fails, its rows, and the ends of those."""
        rows, failed = list[SampleRow](), dict[Sequence, SequenceOutput]()
        for entry in batch:
            sequence, _, _, _, samples, proposed = entry
            if not samples:
                continue
            if sequence.has_plain_rows and not proposed:  # most are
                rows.append(sequence.greedy_row or drawn_row(sequence))
                continue
            try:
                rows.extend(sample_rows(sequence, entry.num_rows, self._model))
            except TokenMaskError as error:
                reason = FinishReason.INVALID
                failed[sequence] = fail(self._scheduler, sequence, reason, str(error))
        if failed:
            batch = tuple(entry for entry in batch if entry.sequence not in failed)
        return batch, rows, [*failed.values()]
