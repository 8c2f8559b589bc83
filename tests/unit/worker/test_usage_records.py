"""A record of each sequence, at its end and before: what it says, and that it waits its turn."""

import asyncio

import pytest
from opentelemetry.context import Context
from support.engine_driver import make_request

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageRecord
from pagoda_engine import FinishReason, SequenceOutput
from pagoda_runtime.errors import RequestTimeoutError
from pagoda_worker import usage_records
from pagoda_worker.heartbeat.status import WorkerIdentity
from pagoda_worker.sequences import CachedTokens, LiveSequence
from pagoda_worker.usage_records import UsageRecorder


def make_sequence(index: int = 0, **fields: int) -> LiveSequence:
    return LiveSequence(
        sequence_id=f"r.{index}.0",
        request_id="r",
        sequence_index=index,
        attempt=0,
        gateway_id="g",
        context=Context(),
        deadline=1e12,
        request=make_request("a", [1, 2, 3], block_size=4),
        cached=CachedTokens(device=4, nvme=8),
        **fields,
    )


class Log:
    """What is stored; refuses the first `num_failures` messages."""

    def __init__(self, num_failures: int = 0) -> None:
        self.messages: list[tuple[str, UsageRecord]] = []
        self.num_failures = num_failures

    async def publish(self, message: UsageRecord, message_id: str) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise RequestTimeoutError("usage", 1.0)
        self.messages.append((message_id, message))

    @property
    def records(self) -> list[SequenceUsage]:
        return [record.sequence for _, message in self.messages for record in message.batch]


def make_recorder(log: Log, dropped: list[int] | None = None, **fields: int) -> UsageRecorder:
    return UsageRecorder(
        log.publish,
        WorkerIdentity("decode-1", "epoch", Role.ROLE_DECODE),
        on_dropped=([] if dropped is None else dropped).append,
        clock=lambda: 7.0,
        **fields,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_records, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr(usage_records, "RETRY_SECONDS", 0.0)


async def stored(recorder: UsageRecorder) -> None:
    running = asyncio.create_task(recorder.run())
    await recorder.drain(5)
    running.cancel()
    await asyncio.wait([running])


async def test_a_record_says_what_was_published_and_computed() -> None:
    log = Log()
    recorder = make_recorder(log)
    sequence = make_sequence(
        next_index=9, num_output_tokens=6, compute_ns=123, num_prefilled_tokens=3
    )
    recorder.add(sequence, "stop")
    await stored(recorder)

    (record,) = log.records
    assert (record.request_id, record.sequence_index, record.attempt) == ("r", 0, 0)
    assert (record.worker_id, record.role) == ("decode-1", Role.ROLE_DECODE)
    assert (record.first_index, record.num_published_tokens) == (3, 6)
    assert (record.compute_ns, record.num_computed_prompt_tokens) == (123, 3)
    assert (record.cached.device, record.cached.nvme) == (4, 8)
    assert (record.finish_reason, record.ended_unix_seconds) == ("stop", 7.0)


async def test_who_computed_no_prompt_says_nothing_of_its_cache() -> None:
    log = Log()
    recorder = make_recorder(log)
    recorder.add(make_sequence(), "abort")
    await stored(recorder)
    assert not log.records[0].HasField("cached")


async def test_records_wait_for_the_log_and_go_together_under_one_id() -> None:
    log = Log(num_failures=3)
    recorder = make_recorder(log)
    for index in range(5):
        recorder.add(make_sequence(index), "stop")
    await stored(recorder)

    assert [record.sequence_index for record in log.records] == list(range(5))
    assert [message_id for message_id, _ in log.messages] == ["epoch-usage-1"]
    assert len({record.record_id for record in log.records}) == 5


async def test_what_finds_no_room_is_counted() -> None:
    dropped: list[int] = []
    recorder = make_recorder(log := Log(), dropped, max_queued=2)
    for index in range(5):
        recorder.add(make_sequence(index), "stop")
    await stored(recorder)
    assert (len(log.records), sum(dropped)) == (2, 3)


@pytest.mark.parametrize("is_told", [True, False])
async def test_an_aborted_one_waits_for_what_the_engine_says(is_told: bool) -> None:
    recorder = make_recorder(log := Log())
    future: asyncio.Future[SequenceOutput | None] = asyncio.get_running_loop().create_future()
    recorder.add_when(future, make_sequence(compute_ns=1), "abort")
    draining = asyncio.create_task(stored(recorder))
    await asyncio.sleep(0)
    assert not draining.done()
    if is_told:
        output = SequenceOutput("a", 0, (), finish_reason=FinishReason.ABORT, compute_ns=55)
        future.set_result(output)
    else:  # the step loop has stopped
        future.cancel()
    await draining
    assert [record.compute_ns for record in log.records] == [55 if is_told else 1]


async def test_those_that_grow_say_so_and_their_end_has_the_same_id() -> None:
    recorder = make_recorder(log := Log())
    growing = make_sequence(0, next_index=3, num_output_tokens=3)
    waiting, ending = make_sequence(1), make_sequence(2, next_index=5, num_output_tokens=5)
    ending.is_ending = True
    for num_tokens in (3, 3, 8):
        growing.num_output_tokens = growing.next_index = num_tokens
        recorder.add_progress([growing, waiting, ending])
    recorder.add(growing, "stop")
    recorder.add(waiting, "abort")
    await stored(recorder)
    assert [
        (r.sequence_index, r.num_published_tokens, r.ended_unix_seconds, r.finish_reason)
        for r in log.records
    ] == [(0, 3, 0.0, ""), (0, 8, 0.0, ""), (0, 8, 7.0, "stop"), (1, 0, 7.0, "abort")]
    first, second, last, other = (record.record_id for record in log.records)
    assert first == second == last != other


async def test_progress_does_not_fill_the_queue_while_nobody_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_records, "MAX_RECORDS", 3)
    dropped: list[int] = []
    recorder = make_recorder(log := Log(), dropped)
    sequences = [make_sequence(index, next_index=1, num_output_tokens=1) for index in range(9)]
    for num_tokens in range(1, 6):
        for sequence in sequences:
            sequence.num_output_tokens = sequence.next_index = num_tokens
        recorder.add_progress(sequences)
    for sequence in sequences:
        recorder.add(sequence, "stop")
    await stored(recorder)
    # Each has said so once, however many they are.
    assert [record.ended_unix_seconds for record in log.records] == [0.0] * 9 + [7.0] * 9
    assert len({message_id for message_id, _ in log.messages}) == len(log.messages) == 6
    assert dropped == []


async def test_progress_is_reported_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_records, "next_tick", lambda _seconds: asyncio.sleep(0))
    recorder = make_recorder(log := Log())
    reporting = asyncio.create_task(
        recorder.report_progress([make_sequence(next_index=2, num_output_tokens=2)])
    )
    for _ in range(5):
        await asyncio.sleep(0)
    reporting.cancel()
    await stored(recorder)
    assert [record.num_published_tokens for record in log.records] == [2]
