"""Responses of two gateways with one database: kept for both, ended by either."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
import sqlalchemy as sa
from support.postgres import Postgres
from support.running_gateway import Running, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for

from pagoda_gateway.responses import endpoint
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration]

ASKED: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 8}
BEHIND = {**ASKED, "background": True}


StartReplica = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
async def replica(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StartReplica]:
    """Start gateways of one database, each with a worker; any worker may get any request."""
    monkeypatch.setattr(endpoint, "WATCH_SECONDS", 0.05)
    with nats_server(tmp_path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with Bus.connect(common, name="workers") as bus:

            def start(
                *, ledger_url: str = "", **script: Any
            ) -> AbstractAsyncContextManager[Running]:
                worker = ScriptedWorker(bus, **script)
                return running_gateway(common, bus, model_folder, worker, ledger_url=ledger_url)

            yield start


async def ended(running: Running) -> None:
    assert await running.gateway.admission.drain(30)


async def until_no_longer_running(client: openai.AsyncOpenAI, response_id: str) -> None:
    async with asyncio.timeout(60):
        while (await client.responses.retrieve(response_id)).status == "in_progress":
            pass


async def until_in_progress(client: openai.AsyncOpenAI, response_id: str) -> None:
    async with asyncio.timeout(60):
        while (await client.responses.retrieve(response_id)).status != "in_progress":
            pass


async def test_one_is_found_and_gone_on_with_anywhere_and_after_a_restart(
    replica: StartReplica,
) -> None:
    async with replica() as first, first.sdk() as client:
        made = await client.responses.create(**ASKED)
        streamed = await client.responses.create(**ASKED, stream=True)
        *_, last = [event async for event in streamed]
    assert made.store
    async with replica() as second, second.sdk() as client:
        for response in (made, last.response):
            found = await client.responses.retrieve(response.id)
            assert found.model_dump() == response.model_dump()
        more = await client.responses.create(**ASKED, previous_response_id=made.id)
        items = await client.responses.input_items.list(more.id, order="asc")
        await client.responses.delete(made.id)
    assert [item.type for item in items.data] == ["message"] * 3
    async with replica() as first, first.sdk() as client:
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        assert (await client.responses.retrieve(more.id)).previous_response_id == made.id


@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_what_runs_at_one_is_ended_by_the_other(replica: StartReplica, way: str) -> None:
    async with (
        replica(gate_index=3) as first,
        replica(gate_index=3) as second,
        first.sdk() as at_first,
        second.sdk() as at_second,
    ):
        made = await at_first.responses.create(**BEHIND)
        await first.tokens_arrived(3)
        during = await at_second.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="has not ended"):
            await at_second.responses.create(**ASKED, previous_response_id=made.id)
        await getattr(at_second.responses, way)(made.id)
        await ended(first)
        for worker in (first.worker, second.worker):
            await worker.wait_until(lambda worker=worker: worker.num_running == 0)
        if way == "cancel":
            for client in (at_first, at_second):
                assert (await client.responses.retrieve(made.id)).status == "cancelled"
        else:
            with pytest.raises(openai.NotFoundError):
                await at_first.responses.retrieve(made.id)
            # Its account alone tells the other of it, until that has ended.
            with pytest.raises(openai.NotFoundError):
                await until_no_longer_running(at_second, made.id)
    assert during.status == "in_progress"
    cancels = [*first.worker.cancels, *second.worker.cancels]
    assert [cancel.request_id for cancel in cancels] == [made.id.removeprefix("resp_")]


async def test_what_the_other_ends_is_ended_after_a_restore(
    replica: StartReplica, postgres: Postgres
) -> None:
    """The database has no tables for a moment, as while a copy is put back."""
    rename, url = "ALTER TABLE {} RENAME TO {}", postgres.new_database()
    async with (
        replica(ledger_url=url, gate_index=3) as first,
        replica(ledger_url=url, gate_index=3) as second,
        first.sdk() as at_first,
        second.sdk() as at_second,
    ):
        made = await at_first.responses.create(**BEHIND)
        await first.tokens_arrived(3)
        database, refusals = first.gateway.ledger.database, 0
        await database.call(lambda c: c.execute(sa.text(rename.format("responses", "away"))))
        while refusals < 3:
            answer = await first.http.get(f"/v1/responses/{made.id}")
            refusals += answer.status_code == 503
            await asyncio.sleep(endpoint.WATCH_SECONDS)  # so that the watch has looked, too
        await database.call(lambda c: c.execute(sa.text(rename.format("away", "responses"))))
        await at_second.responses.cancel(made.id)
        await ended(first)
        assert (await at_first.responses.retrieve(made.id)).status == "cancelled"


async def test_one_that_ran_to_its_end_is_found_when_its_gateway_is_gone(
    replica: StartReplica,
) -> None:
    async with replica() as first, first.sdk() as client:
        made = await client.responses.create(**BEHIND)
        await ended(first)
    async with replica() as second, second.sdk() as client:
        found = await client.responses.retrieve(made.id)
    assert (made.status, found.status) == ("queued", "incomplete")
    assert len(found.output_text) == 8


async def test_one_whose_gateway_stops_has_failed(replica: StartReplica) -> None:
    async with replica(gate_index=3) as first, first.sdk() as client:
        made = await client.responses.create(**BEHIND)
        await first.tokens_arrived(3)
    async with replica() as second, second.sdk() as client:
        found = await client.responses.retrieve(made.id)
    assert found.status == "failed"
    assert found.error is not None
    assert "stopped" in found.error.message


async def test_one_that_ends_while_the_other_looks_has_not_failed(replica: StartReplica) -> None:
    async with (
        replica(gate_index=1) as first,
        replica(gate_index=1) as second,
        first.sdk() as client,
    ):
        response = await client.responses.create(**BEHIND)
        async with second.sdk() as other:
            await until_in_progress(other, response.id)
            responses = second.gateway.responses
            account_of = responses._account_of

            async def account_of_what_has_ended(tenant: str, name: str) -> Any:
                for running in (first, second):
                    running.worker.open_gate()
                await ended(first)
                async with asyncio.timeout(60):
                    account = None
                    while not (account and account["closed_unix_seconds"]):
                        account = await account_of(tenant, name)
                return account

            responses._account_of = account_of_what_has_ended
            found = await other.responses.retrieve(response.id)
        assert (found.status, found.error) == ("incomplete", None)
        assert found.output_text


async def test_an_answer_waits_a_moment_for_a_database_and_says_that_it_is_not_kept(
    replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "KEEP_SECONDS", 0.05)
    async with replica() as first, first.sdk() as client:

        async def hang(*_: Any) -> None:
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first.gateway.ledger.database, "call", hang)
            made = await client.responses.create(**ASKED)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
    assert not made.model_dump()["store"]
    assert len(made.output_text) == 8
