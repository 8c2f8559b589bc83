"""What each step spent its time on: metrics of every step, a trace of one step in N.

A traced step is a trace of its own, `worker.step`, linked with the requests it computed: one step
serves many of them, so it can be no child of any. Runs on the event loop.
"""

import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.context import Context

from pagoda_engine import StepResult, StepStats
from pagoda_runtime.telemetry.tracing import record_span, tracer
from pagoda_worker.sequences import S, SequenceTable
from pagoda_worker.telemetry.metrics import STEP_PARTS, WorkerMetrics

MAX_LINKS = 8


class StepTimeline:
    """Follows the steps of one worker; each is begun and ended, one after the other."""

    def __init__(
        self,
        worker_id: str,
        epoch: str,
        metrics: WorkerMetrics,
        *,
        trace_interval: int,
        clock: Callable[[], float] = time.time,
        engine_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Count steps from 1.

        Args:
            worker_id: for the spans.
            epoch: for the spans.
            metrics: where each step is counted.
            trace_interval: steps N, 2N, 3N, ... are traced; 0: none.
            clock: Unix seconds.
            engine_clock: the one of `StepStats.started`.
        """
        self._attributes = {"pagoda.worker_id": worker_id, "pagoda.epoch": epoch}
        self._metrics = metrics
        self._parts = {part: metrics.step_part_seconds.labels(part) for part in STEP_PARTS}
        self._modes = {
            True: metrics.steps.labels("graph"),
            False: metrics.steps.labels("eager"),
        }
        self._trace_interval = trace_interval
        self._clock = clock
        self._engine_clock = engine_clock
        self._num_steps = 0
        self._arrived = 0.0
        self._device_ended = 0.0
        self._unix_offset = 0.0  # of the step that is being traced
        self._root: trace.Span | None = None

    def begin(self, result: StepResult, sequences: SequenceTable[S]) -> None:
        """A step's result has come: from here on it is being published."""
        self._arrived = self._engine_clock()
        if not result.stats.num_sequences:
            return
        self._num_steps += 1
        if self._trace_interval and self._num_steps % self._trace_interval == 0:
            self._start_trace(result, sequences)

    def end(self, stats: StepStats) -> None:
        """The step's tokens are on their way to the gateways."""
        if not stats.num_sequences:
            return
        ended = self._engine_clock()
        self._count(stats, ended - self._arrived)
        device_started = self._place_on_device(stats)
        root, self._root = self._root, None
        if root is not None:
            self._finish_trace(root, stats, device_started, ended)

    def _count(self, stats: StepStats, publish_seconds: float) -> None:
        parts = self._parts
        parts["schedule"].observe(stats.schedule_seconds)
        parts["launch"].observe(stats.launch_seconds)
        parts["forward"].observe(stats.forward_seconds)
        parts["sample"].observe(stats.sample_seconds)
        parts["wait"].observe(stats.wait_seconds)
        parts["commit"].observe(stats.commit_seconds)
        parts["gap"].observe(stats.gap_seconds)
        parts["publish"].observe(publish_seconds)
        self._modes[stats.is_graph].inc()
        self._metrics.step_seconds.observe(stats.seconds)
        self._metrics.step_sequences.observe(stats.num_sequences)

    def _place_on_device(self, stats: StepStats) -> float:
        """Return the engine's time at which the device began this step.

        That is once the work was queued, or `gap_seconds` after the step before, if that was still
        being computed then; and early enough to have ended before its result came.
        """
        launched = stats.started + stats.schedule_seconds + stats.launch_seconds
        seconds = stats.forward_seconds + stats.sample_seconds
        started = max(launched, self._device_ended + stats.gap_seconds)
        self._device_ended = min(started + seconds, self._arrived)
        return self._device_ended - seconds

    def _start_trace(self, result: StepResult, sequences: SequenceTable[S]) -> None:
        stats = result.stats
        computed = _sequences_of(result, sequences)
        contexts = [trace.get_current_span(s.context).get_span_context() for s in computed]
        self._unix_offset = self._clock() - self._engine_clock()
        root = tracer().start_span(
            "worker.step",
            context=Context(),
            links=[trace.Link(context) for context in contexts],
            start_time=int((stats.started + self._unix_offset) * 1e9),
            attributes={
                **self._attributes,
                "pagoda.step.number": self._num_steps,
                "pagoda.step.sequences": stats.num_sequences,
                "pagoda.step.prefill_tokens": stats.num_prefill_tokens,
                "pagoda.step.decode_tokens": stats.num_decode_tokens,
                "pagoda.step.proposed_tokens": stats.num_proposed_tokens,
                "pagoda.step.accepted_tokens": stats.num_accepted_tokens,
                "pagoda.step.context_tokens": stats.num_context_tokens,
                "pagoda.step.preempted": stats.num_preempted,
                "pagoda.step.is_graph": stats.is_graph,
                "pagoda.step.draft_ms": 1e3 * stats.draft_seconds,
                "pagoda.step.gap_ms": 1e3 * stats.gap_seconds,
                "pagoda.step.wait_ms": 1e3 * stats.wait_seconds,
                "pagoda.step.commit_ms": 1e3 * stats.commit_seconds,
            },
        )
        if not root.is_recording():
            return
        self._root = root
        for sequence in computed:
            if len(sequence.step_links) < MAX_LINKS:
                sequence.step_links.append(trace.Link(root.get_span_context()))

    def _finish_trace(
        self, root: trace.Span, stats: StepStats, device_started: float, ended: float
    ) -> None:
        scheduled = stats.started + stats.schedule_seconds
        sampling = device_started + stats.forward_seconds
        context, offset = trace.set_span_in_context(root), self._unix_offset
        for name, start, end in (
            ("schedule", stats.started, scheduled),
            ("launch", scheduled, scheduled + stats.launch_seconds),
            ("forward", device_started, sampling),
            ("sample", sampling, sampling + stats.sample_seconds),
            ("publish", self._arrived, ended),
        ):
            record_span(
                f"step.{name}",
                context=context,
                start_seconds=start + offset,
                end_seconds=end + offset,
            )
        root.end(end_time=int((ended + offset) * 1e9))


def _sequences_of(result: StepResult, sequences: SequenceTable[S]) -> list[S]:
    """Return some that the step computed tokens or whole blocks for: those with fewest links."""
    ids = [output.sequence_id for output in result.outputs if output.token_ids]
    ids += [computed.sequence_id for computed in result.computed]
    known = filter(None, map(sequences.get, dict.fromkeys(ids)))
    return sorted(known, key=lambda sequence: len(sequence.step_links))[:MAX_LINKS]
