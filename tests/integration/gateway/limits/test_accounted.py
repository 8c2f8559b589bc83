"""No budget is seeded before the ledger has what was spent, wherever the records of it wait."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.clocks import Now
from support.limits import MICROS_PER_TOKEN, hold_of, key_with, limiter_on
from support.replicas import ADMIN_KEY, MAX_TOKENS, Client, Replicas, set_price
from support.running_gateway import CHAT, Running, running_applier, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import Server, binary, free_port, nats_server, redis_server, settings_for

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limits import accounted as module
from pagoda_gateway.accounts.limits.accounted import LOOK_SECONDS, Accounted, UnaccountedError
from pagoda_gateway.accounts.limits.counters import LEASE_SECONDS
from pagoda_gateway.accounts.limits.limiter import NO_END_SECONDS, Limiter
from pagoda_gateway.accounts.usage import forwarder
from pagoda_gateway.accounts.usage.folder_lock import FolderLock
from pagoda_gateway.accounts.usage.forwarder import Forwarder
from pagoda_gateway.accounts.usage.outbox import Outbox
from pagoda_gateway.accounts.usage.stream import ensure_usage_stream
from pagoda_gateway.accounts.usage.usage_log import UsageLog
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.permissions import PERMISSIONS, authorization
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

pytestmark = pytest.mark.integration


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[Server]:
    with nats_server(tmp_path) as server:
        yield server


@pytest.fixture
def common(own_nats: Server, tmp_path: Path) -> CommonSettings:
    return settings_for(own_nats, home=tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def looking(
    bus: Bus, root: Path, *, clock: Now | None = None
) -> AsyncIterator[tuple[Accounted, UsageLog]]:
    """A gateway's usage log, what sends it on, and what looks where it is."""
    outbox = await Outbox.open(root, "own", max_bytes=1 << 20, on_state=lambda *_: None)
    sender = Forwarder(bus, outbox, root, timeout_seconds=2, unix_clock=time.time)
    tasks = BackgroundTasks()
    tasks.start(sender.run())
    tasks.start(sender.adopt_forever())
    accounted = Accounted(bus, sender, clock=clock or Now())
    yield accounted, UsageLog(outbox, timeout_seconds=5, clock=time.time)
    await accounted.close()
    await tasks.close()
    await outbox.close()


async def spend(log: UsageLog, request_id: str = "r") -> None:
    await log.open(UsageOpen(request_id=request_id, tenant="t", num_prompt_tokens=5))
    await log.close(
        UsageClose(
            request_id=request_id, num_prompt_tokens=5, num_output_tokens=7,
            outcome="finished", closed_unix_seconds=1.0,
        )
    )  # fmt: skip


async def until(accounted: Accounted, generation: str = "g") -> None:
    """Return once all is accounted."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(UnaccountedError):
                return await accounted.wait(generation)


async def test_nobody_waits_where_nothing_was_ever_spent(common: CommonSettings) -> None:
    async with (
        Bus.connect(common, name="gateway") as bus,
        looking(bus, common.home / "outbox") as (accounted, _),
        asyncio.timeout(60),
    ):
        await accounted.wait("g")


async def test_what_waits_for_an_applier_is_waited_for(
    common: CommonSettings, impatient: None
) -> None:
    async with (
        Bus.connect(common, name="gateway") as bus,
        looking(bus, common.home / "outbox") as (accounted, log),
    ):
        await spend(log)
        with pytest.raises(UnaccountedError, match="not accounted"):
            await accounted.wait("g")
        async with running_applier(common) as applier:
            await until(accounted)
            assert await applier.ledger.totals("t") == (5, 7)
        await spend(log, "r2")  # the applier has gone again: it is known to the stream
        with pytest.raises(UnaccountedError):
            await accounted.wait("other counters")


async def test_nats_that_does_not_say_what_the_ledger_has_is_what_is_named(
    tmp_path: Path, impatient: None
) -> None:
    """It runs with a nats.conf of before gateways asked."""
    users = dict.fromkeys(PERMISSIONS, "password")
    port, config = free_port(), tmp_path / "nats.conf"
    config.write_text(
        f"host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: {tmp_path / 'jetstream'} }}\n"
        + authorization(users).replace("$JS.API.CONSUMER.INFO.USAGE.*", "pagoda.v1.nothing")
    )
    command = [binary("nats-server"), "--config", str(config)]
    server = Server(command, port, tmp_path / "nats.log", "password", f"nats://127.0.0.1:{port}")
    gateways, appliers = (
        settings_for(server, home=tmp_path, nats_user=user) for user in ("gateway", "applier")
    )
    server.start()
    try:
        async with (
            Bus.connect(appliers, name="applier") as applier,
            Bus.connect(gateways, name="gateway") as bus,
            looking(bus, tmp_path / "outbox") as (accounted, _),
        ):
            await ensure_usage_stream(applier, 1 << 20)
            said, expected = "", "NATS does not say what the ledger has"
            async with asyncio.timeout(30):
                while expected not in said:  # it looks at this host's records before
                    with pytest.raises(UnaccountedError) as raised:
                        await accounted.wait("g")
                    said = str(raised.value)
    finally:
        server.stop(kill=True)


async def test_what_a_dead_gateway_left_on_this_host_is_waited_for(
    common: CommonSettings, impatient: None
) -> None:
    root = common.home / "outbox"
    left = await Outbox.open(root, "dead", max_bytes=1 << 20, on_state=lambda *_: None)
    await spend(UsageLog(left, timeout_seconds=5, clock=time.time))
    async with (
        Bus.connect(common, name="gateway") as bus,
        running_applier(common) as applier,
        looking(bus, root) as (accounted, _),
    ):
        await until(accounted)
        assert await applier.ledger.totals("t") == (0, 0)  # that gateway lives, and knows it
        await left.close()
        await until(accounted, "other counters")
        assert await applier.ledger.totals("t") == (5, 7)


async def test_what_another_gateway_adopts_is_waited_for(
    common: CommonSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(forwarder, "ADOPT_SECONDS", 0.01)
    root = common.home / "outbox"
    adopting = FolderLock.make(root / "dead")
    (root / "dead" / "adopted").touch()
    async with (
        Bus.connect(common, name="gateway") as bus,
        looking(bus, root) as (accounted, _),
        asyncio.timeout(60),
    ):
        waiting = asyncio.create_task(accounted.wait("g"))
        while accounted._forwarder._num_passes < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not waiting.done()
        adopting.release(delete=True)
        await waiting


async def test_a_nats_that_does_not_answer_says_nothing(
    common: CommonSettings, own_nats: Server, impatient: None
) -> None:
    async with (
        Bus.connect(common, name="gateway") as bus,
        looking(bus, common.home / "outbox") as (accounted, _),
    ):
        own_nats.stop(kill=True)
        with pytest.raises(UnaccountedError):
            await accounted.wait("g")
        own_nats.start()
        await until(accounted)


async def test_one_look_is_for_all_of_the_same_counters_for_a_while(
    common: CommonSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks, clock = 0, Now()

    async def look(*_: Any) -> None:
        nonlocal num_looks
        num_looks += 1

    monkeypatch.setattr(module, "until_applied", look)
    async with (
        Bus.connect(common, name="gateway") as bus,
        looking(bus, common.home / "outbox", clock=clock) as (accounted, _),
        asyncio.timeout(60),
    ):
        await asyncio.gather(*(accounted.wait("g") for _ in range(8)))
        clock.seconds += LOOK_SECONDS - 1
        await accounted.wait("g")
        assert num_looks == 1
        await accounted.wait("other counters")
        assert num_looks == 2
        clock.seconds += LOOK_SECONDS + 1
        await accounted.wait("other counters")
        assert num_looks == 3


async def test_only_budgets_wait_for_the_ledger(
    client: Redis, database: Database, now: Now
) -> None:
    async def wait(_generation: str) -> None:
        raise UnaccountedError("later")

    limiter = limiter_on(client, database, now, wait_accounted=wait)
    key = key_with(tenant={"requests_per_minute": 5})
    assert (await limiter.take(hold_of("r1", key))).kind == "taken"
    with pytest.raises(UnaccountedError):
        await limiter.take(hold_of("r2", key_with(tenant={"daily_budget_micros": 1000})))


async def test_a_lost_request_is_not_forgotten_while_its_records_may_be_on_their_way(
    client: Redis, database: Database, now: Now
) -> None:
    is_accounted = True

    async def wait(_generation: str) -> None:
        if not is_accounted:
            raise UnaccountedError("later")

    key = key_with(tenant={"daily_budget_micros": 1000})
    dead, living = (limiter_on(client, database, now, wait_accounted=wait) for _ in range(2))
    assert (await dead.take(hold_of("r1", key, micros=900))).kind == "taken"
    for seconds, held in ((LEASE_SECONDS + 1, 900), (NO_END_SECONDS + 1, 900)):
        is_accounted = False
        now.seconds += seconds
        await living.settle_lost()
        assert await day_held(living, key) == held
    is_accounted = True
    await living.settle_lost()
    assert await day_held(living, key) == 0


async def day_held(limiter: Limiter, key: ApiKey) -> int:
    (usage,) = await limiter._counters.usage(key.scopes)
    return usage.day_held


@contextlib.asynccontextmanager
async def running(
    common: CommonSettings, bus: Bus, model_folder: Path, redis: Server
) -> AsyncIterator[tuple[Running, Replicas]]:
    """A gateway whose records nobody applies."""
    worker = ScriptedWorker(bus)
    async with running_gateway(
        common, bus, model_folder, worker, has_applier=False, admin_key=ADMIN_KEY
    ) as gateway:
        await set_price(gateway)
        gateway.gateway.limits.limiter._grace_seconds = 0.0
        yield gateway, Replicas(gateway, gateway, [worker], redis)


@pytest.mark.slow
async def test_a_budget_is_not_spent_again_by_gateways_that_know_nothing_of_it(
    model_folder: Path, tmp_path: Path, own_nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as redis:
        common = settings_for(own_nats, redis, home=tmp_path)
        async with Bus.connect(common, name="workers") as bus:
            async with running(common, bus, model_folder, redis) as (first, replicas):
                free = await replicas.client()
                body = {"model": "tiny", "messages": CHAT["messages"]}
                counted = await first.http.post("/tokenize", json=body, headers=free.headers)
                cost = (int(counted.json()["count"]) + MAX_TOKENS) * MICROS_PER_TOKEN
                client = await replicas.client(daily_budget_micros=2 * cost)
                found = [(await client.ask(ignore_eos=True)).status_code for _ in range(3)]
                assert found == [200, 200, 429]
            redis.stop(kill=True)
            redis.start()
            monkeypatch.setattr(module, "WAIT_SECONDS", 0.2)
            async with running(common, bus, model_folder, redis) as (_, replicas):
                client = Client(replicas, client.tenant, client.key, client.tier)
                refused = await client.ask(ignore_eos=True)
                assert refused.status_code == 503
                assert "not accounted yet" in refused.json()["error"]["message"]
                free = Client(replicas, free.tenant, free.key, free.tier)
                assert (await free.ask()).status_code == 200
                async with running_applier(common), asyncio.timeout(60):
                    while (answer := await client.ask(ignore_eos=True)).status_code == 503:
                        pass
                    assert answer.json()["error"]["code"] == "insufficient_quota"
