"""The stages of a sequence as spans and metrics, recorded once their times are known.

All are children of the gateway's span, whose context came with the request. Those that compute have
links to the traced steps that computed them.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.trace import Link
from opentelemetry.util.types import AttributeValue

from pagoda_engine import Limits, Resumption
from pagoda_runtime.telemetry.tracing import record_span
from pagoda_worker.sequences import LiveSequence
from pagoda_worker.telemetry.metrics import WorkerMetrics


class StageRecorder:
    """Records stages of one worker's sequences."""

    def __init__(self, worker_id: str, epoch: str, metrics: WorkerMetrics) -> None:
        self._worker_id = worker_id
        self._epoch = epoch
        self._metrics = metrics

    def record(
        self,
        name: str,
        sequence: LiveSequence,
        start: float,
        end: float,
        attributes: Mapping[str, AttributeValue] | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        """Record one stage; nothing if it never began."""
        if not start or not end:
            return
        self._metrics.stage_seconds.labels(name).observe(max(end - start, 0.0))
        record_span(
            name,
            context=sequence.context,
            start_seconds=start,
            end_seconds=end,
            attributes={
                "pagoda.worker_id": self._worker_id,
                "pagoda.epoch": self._epoch,
                "pagoda.request_id": sequence.request_id,
                "pagoda.sequence_index": sequence.sequence_index,
                "pagoda.attempt": sequence.attempt,
                **(attributes or {}),
            },
            links=links,
        )

    def record_prefill(
        self,
        sequence: LiveSequence,
        *,
        lease_id: str = "",
        fallback_reason: str = "",
        is_cut_short: bool = False,
    ) -> None:
        """prefill.queue, kv.fetch and prefill.compute, by the side that prefilled.

        Args:
            sequence: whose first token is here, or never will be.
            lease_id: of the consumer that it was computed for.
            fallback_reason: why the consumer computed it after all.
            is_cut_short: it ended during its prompt: the last of these stages has no end but that.
        """
        stages, cached = sequence.stages, sequence.cached
        num_tokens = sequence.num_known_tokens
        num_cached = cached.device + cached.cpu + cached.nvme
        computed: dict[str, AttributeValue] = {}
        if not is_cut_short:  # else steps may be under way that compute some
            computed["pagoda.computed_tokens"] = max(num_tokens - num_cached, 0)
        extra: dict[str, AttributeValue] = {}
        if lease_id:
            extra["pagoda.lease_id"] = lease_id
        if fallback_reason:
            extra["pagoda.fallback_reason"] = fallback_reason
        if is_cut_short:
            extra["pagoda.is_cut_short"] = True
        queue_end = stages.reserved
        if fallback_reason:  # decode.queue covers the wait for admission already
            queue_end = stages.fetch_started
        queue_start = queue_end if fallback_reason else stages.accepted
        waited = {} if fallback_reason else _waited(sequence)
        self.record("prefill.queue", sequence, queue_start, queue_end, {**extra, **waited})
        self.record(
            "kv.fetch",
            sequence,
            stages.fetch_started,
            stages.fetched,
            {
                "pagoda.planned_blocks": sequence.plan_num_fetch_blocks,
                "pagoda.cached_tokens.cpu": cached.cpu,
                "pagoda.cached_tokens.nvme": cached.nvme,
                **extra,
            },
        )
        self.record(
            "prefill.compute",
            sequence,
            stages.fetched,
            stages.first_token,
            {
                "pagoda.prompt_tokens": num_tokens,
                **computed,
                "pagoda.cached_tokens.device": cached.device,
                "pagoda.cached_tokens.cpu": cached.cpu,
                "pagoda.cached_tokens.nvme": cached.nvme,
                **_counts("chunks", sequence.chunk_limits),
                **extra,
            },
            sequence.step_links,
        )

    def record_resumption(
        self,
        sequence: LiveSequence,
        resumption: Resumption,
        *,
        preempted: float,
        resumed: float,
        num_fetched: int,
    ) -> None:
        """decode.resume: from the loss of its blocks until it can go on, and why that way.

        Args:
            sequence: that was preempted.
            resumption: what was predicted.
            preempted: unix seconds.
            resumed: unix seconds.
            num_fetched: blocks that a lower tier brought.
        """
        choice = "fetch" if resumption.fetched else "compute"
        self._metrics.resumptions.labels(choice).inc()
        self.record(
            "decode.resume",
            sequence,
            preempted,
            resumed,
            {
                "pagoda.resume.preempted_because": sequence.preempted_because,
                "pagoda.resume.choice": choice,
                "pagoda.resume.cached_tokens": resumption.num_cached_tokens,
                "pagoda.resume.kvstore_blocks": resumption.num_lower_blocks,
                "pagoda.resume.fetched_blocks": num_fetched,
                "pagoda.resume.predicted_fetch_ms": 1e3 * resumption.fetch_cost,
                "pagoda.resume.predicted_compute_ms": 1e3 * resumption.compute_cost,
            },
        )

    def record_transfer(
        self, sequence: LiveSequence, attributes: Mapping[str, AttributeValue]
    ) -> None:
        """kv.transfer, by the consumer."""
        stages = sequence.stages
        self.record(
            "kv.transfer", sequence, stages.transfer_started, stages.transferred, attributes
        )

    def record_decode(
        self, sequence: LiveSequence, *, finish_reason: str, is_local_prefill: bool
    ) -> None:
        """decode.queue and decode.generate. A local prefill waited in prefill.queue."""
        stages = sequence.stages
        if is_local_prefill:
            self.record("decode.queue", sequence, stages.joined, stages.joined)
        else:
            waited = _waited(sequence)
            self.record("decode.queue", sequence, stages.accepted, stages.reserved, waited)
        self.record(
            "decode.generate",
            sequence,
            stages.joined,
            stages.ended,
            {
                "pagoda.output_tokens": sequence.num_output_tokens,
                "pagoda.proposed_tokens": sequence.num_proposed_tokens,
                "pagoda.accepted_tokens": sequence.num_accepted_tokens,
                "pagoda.finish_reason": finish_reason,
                **_counts("chunks", sequence.resumed_limits),
                **_counts("proposals", sequence.proposal_limits),
            },
            sequence.step_links,
        )


def _waited(sequence: LiveSequence) -> dict[str, AttributeValue]:
    """Return what a sequence lacked while it waited; nothing if it was let in in its turn."""
    if not sequence.waited_for:
        return {}
    return {"pagoda.queue.waited_for": ", ".join(sequence.waited_for)}


def _counts(of: str, limits: Limits) -> dict[str, AttributeValue]:
    """Return an attribute for each limit: how often it was one."""
    return {f"pagoda.{of}.{limit}": number for limit, number in limits.items()}
