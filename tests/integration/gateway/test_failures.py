"""Workers that die, refuse or stutter; routers that refuse; frames that come twice."""

import asyncio
import logging
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.running_gateway import Running, Start, heard_of, running_gateway, text_of
from support.scripted_worker import ScriptedWorker, letters, running_worker
from support.servers import nats_server, settings_for

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1 import route_pb2
from pagoda.rpc.v1.status_pb2 import Role
from pagoda_gateway.http import middleware
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


def expected_text(request: pb.GenerateRequest, num_tokens: int) -> str:
    return "".join(chr(letters(request, i) - 5 + 33) for i in range(num_tokens))


async def test_worker_death_goes_on_at_the_right_index(start: Start, bus: Any) -> None:
    first = ScriptedWorker(bus, gate_index=5)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=12, seed=3))
        await first.wait_until(lambda: bool(first.requests))
        second = ScriptedWorker(bus)
        async with running_worker(second):
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(5)
            await first.kill()
            chunks = await asking
        request = second.requests[0]
        assert request.attempt == 1
        assert list(request.output_token_ids) == [letters(request, i) for i in range(5)]
        assert running.router.requests[-1].excluded_worker_ids == [first.worker_id]
        assert text_of(chunks) == expected_text(request, 12)
        assert sum(1 for c in chunks if c["choices"][0]["finish_reason"]) == 1


async def test_worker_where_nobody_listens_costs_an_attempt_and_no_request(
    start: Start, bus: Any
) -> None:
    """Its silence is not noticed yet: the answer of the bus is."""
    one = ScriptedWorker(bus)
    async with start(one) as running, running_worker(ScriptedWorker(bus)) as other:
        await heard_of(running.router.directory, other.worker_id)
        await heard_of(running.gateway.directory, other.worker_id)
        first = next(iter(running.router.directory.alive(Role.ROLE_DECODE))).worker_id
        gone, left = (one, other) if one.worker_id == first else (other, one)
        await gone._subscriptions.pop(0).unsubscribe()  # and no goodbye, as of a killed process
        chunks = await running.events(max_tokens=12, seed=3)

        (request,) = left.requests
        assert request.attempt == 1
        assert running.router.requests[-1].excluded_worker_ids == [gone.worker_id]
        assert text_of(chunks) == expected_text(request, 12)


async def test_the_log_says_why_an_attempt_failed_and_not_that_all_have(
    start: Start, bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = ScriptedWorker(bus, gate_index=5)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=12))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(5)
            await first.kill()
            answer = await asking
    lines = [r.getMessage() for r in caplog.records if r.name.endswith("sequences.placement")]
    assert lines == [
        f"request {answer.headers['x-request-id']} sequence 0: attempt 1 of 3 failed (lost): on "
        f"{first.worker_id}: decode worker {first.worker_id} is gone; another follows"
    ]


class Mute(ScriptedWorker):
    """Takes a sequence and dies before it says so."""

    async def _admit(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        await super()._admit(request, context)
        self._running.clear()
        return await asyncio.get_running_loop().create_future()


async def test_worker_that_dies_before_it_answers_is_not_waited_for(start: Start, bus: Any) -> None:
    first = Mute(bus)
    async with start(first, admit_timeout_seconds=60) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=12, seed=3))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await first.kill()
            async with asyncio.timeout(30):  # half of what it may take to answer
                chunks = await asking
            request = second.requests[0]
        assert request.attempt == 1
        assert text_of(chunks) == expected_text(request, 12)


async def test_billed_once_over_two_attempts(start: Start, bus: Any) -> None:
    first = ScriptedWorker(bus, gate_index=5)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=12))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(5)
            await first.kill()
            answer = await asking
            left = [worker.requests[0].remaining_seconds for worker in (first, second)]
        receipt = await running.receipt(answer)
        assert answer.json()["usage"]["completion_tokens"] == 12
        assert (receipt["output_tokens"], receipt["attempts"]) == (12, 2)
        assert left[0] > left[1] > 0
        assert receipt["workers"] == [first.worker_id, second.worker_id]


async def test_late_frames_of_the_dead_worker_change_nothing(start: Start, bus: Any) -> None:
    first = ScriptedWorker(bus, gate_index=5)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=12, seed=3))
        await first.wait_until(lambda: bool(first.requests))
        second = ScriptedWorker(bus, gate_index=8)
        async with running_worker(second):
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(5)
            await first.kill()
            await second.wait_until(lambda: bool(second.requests))
            await running.tokens_arrived(8)
            request = second.requests[0]
            name = {"request_id": request.request_id, "sequence_index": 0}
            stale = pb.Frame(**name, attempt=0, first_index=8, token_ids=[5, 5, 5])
            known = [letters(request, i) for i in range(8)]
            again = pb.Frame(**name, attempt=1, first_index=0, token_ids=known)
            end = pb.Frame(**name, attempt=0, first_index=8, finish_reason=pb.FINISH_REASON_STOP)
            await first.publish(request.gateway_id, stale, again, end)
            second.open_gate()
            chunks = await asking
        assert text_of(chunks) == expected_text(request, 12)


async def test_decode_that_samples_another_first_token_does_not_change_the_answer(
    start: Start, bus: Any
) -> None:
    """The prefill worker publishes token 0 and dies; decode computes it again, differently."""

    def other_at_first(request: pb.GenerateRequest, index: int) -> int:
        return 5 if request.attempt == 0 else letters(request, index)

    worker = ScriptedWorker(bus, gate_index=0, token_at=other_at_first)
    async with start(worker) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=6, seed=1))
        await worker.wait_until(lambda: bool(worker.requests))
        request = worker.requests[0]
        published = pb.Frame(
            request_id=request.request_id, first_index=0, token_ids=[letters(request, 0)]
        )
        await worker.publish(request.gateway_id, published)
        await running.tokens_arrived(1)
        worker.open_gate()
        answer = await asking
        assert [cancel.reason for cancel in worker.cancels] == ["superseded"]
        assert list(worker.requests[1].output_token_ids) == [letters(request, 0)]
        content = answer.json()["choices"][0]["message"]["content"]
        assert content == expected_text(request, 6)
        receipt = await running.receipt(answer)
        assert (receipt["output_tokens"], receipt["attempts"]) == (6, 2)


async def test_gap_starts_another_attempt(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker, gap_timeout_seconds=0.05) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=6, seed=1))
        await worker.wait_until(lambda: bool(worker.requests))
        await running.tokens_arrived(2)
        request = worker.requests[0]
        lost = pb.Frame(request_id=request.request_id, first_index=4, token_ids=[70])
        await worker.publish(request.gateway_id, lost)
        await worker.wait_until(lambda: len(worker.requests) == 2)
        worker.open_gate()
        answer = await asking
        assert worker.requests[1].attempt == 1
        assert [cancel.reason for cancel in worker.cancels] == ["superseded"]
        content = answer.json()["choices"][0]["message"]["content"]
        assert content == expected_text(request, 6)


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_ABORT, pb.FINISH_REASON_ERROR])
async def test_client_that_leaves_frees_the_worker_that_came_after_one_that_gave_up(
    start: Start, bus: Any, reason: "pb.FinishReason.ValueType"
) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker) as running:
        asking = asyncio.create_task(running.chat(max_tokens=12, seed=1))
        await worker.wait_until(lambda: bool(worker.requests))
        await running.tokens_arrived(2)
        request = worker.requests[0]
        end = pb.Frame(request_id=request.request_id, first_index=2, finish_reason=reason)
        await worker.publish(request.gateway_id, end)
        await worker.wait_until(lambda: len(worker.requests) == 2)
        asking.cancel()
        await worker.wait_until(lambda: bool(worker.cancels))
        assert [(c.attempt, c.reason) for c in worker.cancels] == [(1, "client_disconnect")]
        assert await running.gateway.admission.drain(60)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (pb.ADMIT_STATUS_OVERLOADED, 429),
        (pb.ADMIT_STATUS_DRAINING, 503),
        (pb.ADMIT_STATUS_NOT_LOADED, 503),
    ],
)
async def test_refusing_worker_is_replaced_and_three_refusals_are_an_answer(
    start: Start, bus: Any, status: Any, code: int
) -> None:
    first = ScriptedWorker(bus, admit_status=status)
    async with start(first) as running:
        answer = await running.chat(stream=True)
        assert answer.status_code == code
        assert int(answer.headers["retry-after"]) >= 1
        assert len(first.requests) == 3
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            assert (await running.chat()).status_code == 200
        receipt = await running.receipt(answer)
        assert (receipt["outcome"], receipt["output_tokens"]) == ("failed", 0)


async def test_a_worker_that_is_full_is_no_warning(
    start: Start, bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="pagoda_gateway")
    async with start(ScriptedWorker(bus, admit_status=pb.ADMIT_STATUS_OVERLOADED)) as running:
        assert (await running.chat()).status_code == 429
    levels = {record.levelname for record in caplog.records if "another follows" in record.message}
    assert levels == {"DEBUG"}


async def test_invalid_is_the_clients_fault(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, admit_status=pb.ADMIT_STATUS_INVALID)) as running:
        answer = await running.chat()
        assert answer.status_code == 400
        assert "scripted" in answer.json()["error"]["message"]
        assert len(running.worker.requests) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(route_pb2.ROUTE_STATUS_NO_WORKER, 503), (route_pb2.ROUTE_STATUS_OVERLOADED, 429)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_router_refuses(running: Running, status: Any, code: int, stream: bool) -> None:
    running.router.answer = route_pb2.RouteResponse(
        status=status, message="every queue is full", retry_after_seconds=2.4
    )
    answer = await running.chat(stream=stream)
    assert answer.status_code == code
    assert answer.headers["retry-after"] == "3"
    assert "queue is full" in answer.json()["error"]["message"]


async def test_no_router(start: Start) -> None:
    async with start(router_wait_seconds=0.2) as running:
        await running.router.stop()
        answer = await running.chat()
        assert answer.status_code == 503
        assert "retry-after" in answer.headers


async def test_nats_that_stands_still_is_named_and_not_the_router(
    model_folder: Path, tmp_path: Path
) -> None:
    with nats_server(tmp_path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model_folder, ScriptedWorker(bus),
                router_wait_seconds=0.2, route_timeout_seconds=0.5,
            ) as running,
        ):  # fmt: skip
            assert nats.process is not None
            nats.process.send_signal(signal.SIGSTOP)
            try:
                answer = await running.chat()
            finally:
                nats.process.send_signal(signal.SIGCONT)
    assert answer.status_code == 503
    assert "NATS, by which routers are asked, does not answer" in answer.json()["error"]["message"]


async def test_a_router_that_is_away_for_a_moment_costs_a_wait(start: Start) -> None:
    async with start() as running, asyncio.TaskGroup() as tasks:
        await running.router.stop()
        asking = tasks.create_task(running.chat())
        await asyncio.sleep(0.3)  # several tries
        await running.router.start()
        assert (await asking).status_code == 200


async def test_a_prompt_that_two_engines_failed_over_is_refused(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0, finish_error="out of blocks")
    async with start(worker) as running:
        for stream in (False, True):
            worker.requests.clear()
            answer = await running.chat(stream=stream)
            assert answer.status_code == 500
            assert "out of blocks" in answer.json()["error"]["message"]
            assert [request.attempt for request in worker.requests] == [0, 1]


async def test_an_engine_fault_is_a_failover(start: Start, bus: Any) -> None:
    first = ScriptedWorker(bus, gate_index=5)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=12, seed=3))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(5)
            first.finish_error = "the device is lost"
            first._work.set()
            chunks = await asking
        request = second.requests[0]
        assert list(request.output_token_ids) == [letters(request, i) for i in range(5)]
        assert text_of(chunks) == expected_text(request, 12)


async def test_sequences_that_shared_a_failed_engine_are_tried_one_at_a_time(
    start: Start, bus: Any
) -> None:
    first = ScriptedWorker(bus, gate_index=0)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(running.chat(max_tokens=3)) for _ in range(4)]
        await first.wait_until(lambda: len(first.requests) == 4)
        second = ScriptedWorker(bus, gate_index=0)
        async with running_worker(second):
            await heard_of(running.router.directory, second.worker_id)
            first.finish_error = "the device is lost"
            first._work.set()
            await second.wait_until(lambda: bool(second.requests))
            await asyncio.sleep(0.1)
            assert len(second.requests) == 1, "the others wait until it has brought a token"
            second.open_gate()
            assert [(await task).status_code for task in asking] == [200] * 4


async def test_engine_fault_in_a_stream_is_one_error_event(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=12))
        await worker.wait_until(lambda: bool(worker.requests))
        await running.tokens_arrived(3, delivered=True)
        worker.finish_error = "out of blocks"
        worker.gate_index = 3
        worker._work.set()
        chunks = await asking
        assert "out of blocks" in chunks[-1]["error"]["message"]
        assert all("error" not in chunk for chunk in chunks[:-1])
        assert len(text_of(chunks[:-1])) == 3


async def test_deadline_is_a_504_and_the_worker_is_told(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=1)
    async with start(worker, request_timeout_seconds=0.5) as running:
        while not worker.requests:  # a busy machine may not get so far in time
            assert (await running.chat()).status_code == 504
        await worker.wait_until(lambda: "deadline" in {c.reason for c in worker.cancels})


async def test_who_is_overdue_by_its_worker_gets_a_504(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, admit_status=pb.ADMIT_STATUS_OVERDUE)) as running:
        answer = await running.chat()
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert len(running.worker.requests) == 1


async def test_a_clock_that_is_set_while_a_request_comes_ends_it_not(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came an hour ago, by the clock that it is looked at by."""
    now = time.time()
    clocks = SimpleNamespace(time=lambda: now - 3600.0, monotonic=time.monotonic)
    monkeypatch.setattr(middleware, "time", clocks)
    assert (await running.chat()).status_code == 200


async def test_too_many_requests_at_once(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker, max_requests_in_flight=1) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat())
        await worker.wait_until(lambda: bool(worker.requests))
        refused = await running.chat()
        worker.open_gate()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await asking).status_code == 200


async def test_cancellation_together_with_an_answer_is_not_lost(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker) as running:
        for delay in range(40):  # so that some cancellations meet the worker's answer
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(running.chat())
                await worker.wait_until(lambda: bool(worker.requests))
                for _ in range(delay % 10):
                    await asyncio.sleep(0)
                running.gateway.admission.abort()
                assert (await asking).status_code == 503
            worker.requests.clear()
        assert await running.gateway.admission.drain(60)
