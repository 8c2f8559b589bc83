"""A record at the end of each attempt, on each worker that had a part in it, however it ended."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from opentelemetry.context import Context
from support.servers import free_port
from support.worker_cluster import GREEDY, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageRecord
from pagoda_engine import SamplingParams
from pagoda_runtime.messaging import subjects
from pagoda_worker import usage_records

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


class Records:
    """What workers have stored, by worker."""

    def __init__(self) -> None:
        self._of: dict[str, SequenceUsage] = {}
        self.running: list[SequenceUsage] = []  # of sequences that had not ended
        self._changed = asyncio.Condition()

    async def on_record(self, message: UsageRecord, _context: Context) -> None:
        async with self._changed:
            for record in message.batch:
                if record.sequence.ended_unix_seconds:
                    self._of[record.sequence.worker_id] = record.sequence
                else:
                    self.running.append(record.sequence)
            self._changed.notify_all()

    async def of(self, worker_id: str) -> SequenceUsage:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: worker_id in self._of)
        return self._of[worker_id]


@pytest_asyncio.fixture
async def records(cluster: Cluster) -> AsyncIterator[Records]:
    records = Records()
    listening = await cluster.bus.subscribe(
        subjects.USAGE_SEQUENCES, UsageRecord, records.on_record
    )
    yield records
    await listening.unsubscribe()


async def test_prefill_and_decode_each_say_their_part(cluster: Cluster, records: Records) -> None:
    await cluster.start_prefill("prefill-1")
    await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    await answer.finished()

    first, second = await records.of("prefill-1"), await records.of("decode-1")
    assert (first.role, second.role) == (Role.ROLE_PREFILL, Role.ROLE_DECODE)
    assert (first.first_index, first.num_published_tokens) == (0, 1)
    assert (second.first_index, second.num_published_tokens) == (1, GREEDY.max_tokens - 1)
    assert (first.finish_reason, second.finish_reason) == ("", "length")
    assert (first.num_computed_prompt_tokens, second.num_computed_prompt_tokens) == (100, 0)
    assert first.compute_ns > 0
    assert second.compute_ns > 0
    assert first.HasField("cached")
    assert not second.HasField("cached")
    assert first.request_id == second.request_id == answer.request.request_id


async def test_while_it_runs_it_says_how_far_it_is(
    cluster: Cluster, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_records, "PROGRESS_SECONDS", 0.02)
    monkeypatch.setattr(usage_records, "BATCH_SECONDS", 0.0)
    await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await answer.finished()

    final = await records.of("decode-1")
    ends = [record.num_published_tokens for record in records.running]
    assert ends == sorted(set(ends))
    assert 0 < ends[0] < final.num_published_tokens == LONG.max_tokens
    assert {record.record_id for record in records.running} == {final.record_id}
    assert {record.num_computed_prompt_tokens for record in records.running} == {100}


async def test_a_later_attempt_begins_where_the_gateway_was(
    cluster: Cluster, records: Records
) -> None:
    await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, output_token_ids=[5, 6, 7], attempt=2)
    await answer.finished()

    record = await records.of("decode-1")
    assert (record.attempt, record.first_index) == (2, 3)
    assert record.first_index + record.num_published_tokens == GREEDY.max_tokens
    assert record.num_computed_prompt_tokens == 103


async def test_a_cancelled_sequence_has_a_record(cluster: Cluster, records: Records) -> None:
    await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await answer.first_token()
    await cluster.cancel("decode-1", answer)
    await answer.finished()

    record = await records.of("decode-1")
    assert record.finish_reason == "abort"
    assert record.num_published_tokens == len(answer.tokens)
    assert record.compute_ns > 0


async def test_a_prefill_whose_consumer_is_gone_has_a_record(
    cluster: Cluster, records: Records
) -> None:
    """Its push fails while it computes, so the engine is asked what it has done."""
    await cluster.start_prefill("prefill-1")
    lease = generate_pb2.Lease(
        lease_id="void", epoch="gone", endpoint=f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    request = generate_pb2.PrefillRequest(generate=cluster.request(PROMPT * 4), lease=lease)
    response = await cluster.bus.request(
        subjects.prefill("prefill-1"), request, generate_pb2.PrefillResponse, timeout_seconds=60
    )
    assert response.status == generate_pb2.ADMIT_STATUS_ACCEPTED

    record = await records.of("prefill-1")
    assert record.num_published_tokens in (0, 1)
    assert 0 < record.num_computed_prompt_tokens <= 400
    assert record.compute_ns > 0


async def test_what_a_drain_ends_has_a_record(cluster: Cluster, records: Records) -> None:
    decode = await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await answer.first_token()
    await cluster.stop(decode)

    record = await records.of("decode-1")
    assert record.num_published_tokens == len(answer.token_ids)
