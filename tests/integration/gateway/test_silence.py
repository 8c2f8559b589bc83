"""Nothing comes any more, and no gap shows it: lost frames, lost sequences, a worker that hangs."""

import asyncio
from typing import Any

import pytest
from support.running_gateway import Start, heard_of, text_of
from support.scripted_worker import ScriptedWorker, letters, running_worker

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1.status_pb2 import Role
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import WorkerDirectory

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SOON = {"silence_seconds": 0.1}


def expected_text(request: pb.GenerateRequest, num_tokens: int) -> str:
    return "".join(chr(letters(request, i) - 5 + 33) for i in range(num_tokens))


async def test_a_lost_last_frame_starts_another_attempt(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=5)
    async with start(worker, **SOON) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=6, seed=3))
        await worker.wait_until(lambda: bool(worker.requests))
        await running.tokens_arrived(5)
        worker._running.clear()  # it has published its end, which nobody got
        worker.open_gate()
        chunks = await asking
        assert [request.attempt for request in worker.requests] == [0, 1]
        assert text_of(chunks) == expected_text(worker.requests[0], 6)
        assert sum(1 for c in chunks if c["choices"][0]["finish_reason"]) == 1


async def test_tokens_that_never_came_start_another_attempt(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=5)
    async with start(worker, **SOON) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=8, seed=3))
        await worker.wait_until(lambda: bool(worker.requests))
        await running.tokens_arrived(5)
        for sequence in worker._running.values():
            sequence.index = 7  # 5 and 6 were published, and lost
        await worker.wait_until(lambda: len(worker.requests) == 2)
        worker.open_gate()
        content = (await asking).json()["choices"][0]["message"]["content"]
        assert content == expected_text(worker.requests[0], 8)


async def test_a_sequence_that_waits_at_its_worker_is_left_alone(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker, **SOON) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=3))
        await worker.wait_until(lambda: len(worker.probes) >= 5)
        worker.open_gate()
        assert (await asking).status_code == 200
        assert [request.attempt for request in worker.requests] == [0]


async def test_a_worker_that_beats_but_does_not_answer_loses_its_sequences(
    start: Start, bus: Any
) -> None:
    first = ScriptedWorker(bus, gate_index=2)
    async with start(first, **SOON) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=6, seed=1))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(2)
            for subscription in first._subscriptions:
                await subscription.unsubscribe()
            first._subscriptions = []
            content = (await asking).json()["choices"][0]["message"]["content"]
            assert content == expected_text(second.requests[0], 6)


async def test_a_dead_worker_costs_one_attempt(
    start: Start, bus: Any, nats_common: CommonSettings
) -> None:
    """Its silence tells of it before its missing heartbeats do: nothing is handed to it again."""
    connection = Bus.connect(nats_common, name="one that dies")
    first = ScriptedWorker(await connection.__aenter__(), gate_index=2)
    async with start(first, **SOON) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat(max_tokens=6, seed=1))
        await first.wait_until(lambda: bool(first.requests))
        await running.tokens_arrived(2)
        gone = tasks.create_task(heard_of(running.gateway.directory, first.worker_id, gone=True))
        await connection.__aexit__(None, None, None)  # before it can say goodbye
        await gone
        async with running_worker(ScriptedWorker(bus)) as second:
            content = (await asking).json()["choices"][0]["message"]["content"]
            assert content == expected_text(second.requests[0], 6)
            assert second.requests[0].attempt == 1


async def test_choices_of_a_prompt_go_to_one_worker_and_one_prefills(
    start: Start, bus: Any
) -> None:
    async with start(ScriptedWorker(bus)) as running:
        answer = await running.chat(n=4, max_tokens=3)
        assert answer.status_code == 200
        assert len(running.router.requests) == 1, "one question for all choices"
        plans = {r.sequence_index: r.plan.prefill_worker_id for r in running.worker.requests}
        assert len(plans) == 4


async def test_cancels_name_their_attempt(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=1)
    async with start(worker, request_timeout_seconds=0.5) as running:
        while not worker.requests:  # a busy machine may not get so far in time
            assert (await running.chat()).status_code == 504
        await worker.wait_until(lambda: bool(worker.cancels))
        assert worker.cancels[0].HasField("attempt")


async def test_a_gateway_says_that_it_lives_and_when_it_ends(start: Start, bus: Any) -> None:
    directory, gone = WorkerDirectory(), asyncio.Event()
    directory.add_listener(lambda _id, status: gone.set() if status is None else None)
    subscription = await directory.subscribe(bus, Role.ROLE_GATEWAY)
    async with start() as running:
        await heard_of(directory, running.gateway.gateway_id)
    async with asyncio.timeout(60):
        await gone.wait()
    await subscription.unsubscribe()


async def test_readiness_follows_routers_and_decode_workers(start: Start, bus: Any) -> None:
    async with start() as running:
        health = running.gateway.health
        async with asyncio.timeout(60):
            while not health.is_ready:  # noqa: ASYNC110  (heartbeats are on their way)
                await asyncio.sleep(0.01)
        router_id = _router_of(running)
        await running.router.stop()
        await heard_of(running.gateway.directory, router_id, gone=True)
        report = health.report()["components"]["router"]
        assert report == {"ready": False, "detail": "no router is alive now"}
        await running.worker.stop()
        await heard_of(running.gateway.directory, running.worker.worker_id, gone=True)
        detail = health.report()["components"]["model"]["detail"]
        assert detail == "no decode worker serves 'tiny' now"


def _router_of(running: Any) -> str:
    (status,) = running.gateway.directory.alive(Role.ROLE_ROUTER)
    return str(status.worker_id)
