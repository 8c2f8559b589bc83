"""Money under kill -9: every process that touches a usage record dies, and the ledger is right.

    PYTHONPATH=tests python -m chaos.ledger [--streams 200] [--faults 21] [--seed 1]
    PYTHONPATH=tests python -m chaos.ledger --only database --outage 300 300 --faults 1 --streams 16

Two gateways, PostgreSQL that syncs, streams all the time; then gateways, applier, workers, Redis,
NATS, the database, a gateway with all workers, and all of them at once are killed at random
moments. At the end the ledger's tokens of each stream are compared with those that its client
received: rows R5, R8, R9 and R17 of the reliability figures (all but the loss of unsynced pages).
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import psycopg
from psycopg.rows import dict_row
from support.postgres import Postgres, postgres_server
from support.servers import free_port
from support.stack import Stack, running_stack

from chaos.faults import Action, Fault, inject
from chaos.ledger_check import Verdict, judge
from chaos.ledger_load import LedgerLoad
from chaos.system import System
from pagoda_cli.bench.provenance import provenance
from pagoda_cli.bench.report import write_json

ROOT = Path(__file__).parents[2]
READY_SECONDS = 180.0
SETTLE_SECONDS = 90.0
GONE_SECONDS = 8.0
WORKERS_TOLD_SECONDS = 7.0
"""After a gateway's end: workers miss it after 5 s, and their records are on their way."""
ENVIRON = {
    "PAGODA_DTYPE": "float32",
    "PAGODA_GATEWAY_RECONCILE_SECONDS": f"{GONE_SECONDS:g}",
    "PAGODA_GATEWAY_DRAIN_SECONDS": "20",
}
REPLICA, DATABASE, EVERYTHING = "second gateway", "database", "everything"
PAIR = "gateway and workers"  # at one moment: nobody is left who served its streams
ONE_EACH = (
    "gateway", "applier", "decode", REPLICA, "nats", DATABASE, "prefill", "redis",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """How hard."""

    faults: tuple[str, ...] = (*ONE_EACH, PAIR, EVERYTHING)
    num_faults: int = 21
    num_streams: int = 200
    num_tokens: int = 40  # of a stream, at most
    max_wait_seconds: float = 3.0  # before a fault, at random
    outage_seconds: tuple[float, float] = (1.0, 6.0)  # of the database
    topology: str = "prefill=1,decode=2"
    seed: int = 1


class Replica:
    """A second gateway of a stack, with the first one's settings and a port of its own."""

    def __init__(self, system: System) -> None:
        (first,) = system.of_role("gateway")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = psutil.Process(first.pid).environ()
        self._environ["PAGODA_HTTP_PORT"] = str(self.port)
        self._environ.pop("PAGODA_GATEWAY_HEALTH_PORT", None)  # that is the first one's
        self._log = system.stack.home / "logs" / "gateway-replica.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pagoda_gateway"], env=self._environ, stdout=log, stderr=log
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    async def ready(self, session: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    timeout = aiohttp.ClientTimeout(total=10)
                    async with session.get(f"{self.url}/readyz", timeout=timeout) as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.1)


@dataclass(slots=True)
class Scene:
    """All that runs."""

    stack: Stack
    system: System
    session: aiohttp.ClientSession
    postgres: Postgres
    url: str  # of the database
    replica: Replica
    load: LedgerLoad
    rng: random.Random
    options: Options

    async def kill(self, role: str) -> str:
        """Kill, and wait until all are ready again. Returns what was done."""
        match role:
            case "second gateway":
                self.replica.kill()
                self.replica.start()
                detail = f"kill {role}"
            case "database":
                seconds = self.rng.uniform(*self.options.outage_seconds)
                await asyncio.to_thread(kill_all, self.postgres)
                before = self.load.num_served
                await asyncio.sleep(seconds)
                served = self.load.num_served - before
                detail = f"kill {role} for {seconds:.1f} s, {served} streams served meanwhile"
                await asyncio.to_thread(start_again, self.postgres)
            case "gateway and workers":
                detail = await self._kill_pair()
            case "everything":
                detail = await self._kill_everything()
            case _:
                done = await inject(Fault(Action.KILL, role), self.system, self.rng, (0, 0))
                detail = done.detail
                await self.system.wait_ready(done.replaced, READY_SECONDS)
        await self.system.wait_ready((), READY_SECONDS)
        await self.replica.ready(self.session)
        if "gateway" in role:
            await asyncio.sleep(WORKERS_TOLD_SECONDS)
        return detail

    async def _kill_pair(self) -> str:
        roles = ("gateway", "decode", "prefill")
        members = [member for member in self.system.members() if member.role in roles]
        for member in members:
            psutil.Process(member.pid).kill()
        await self.system.wait_ready(members, READY_SECONDS)
        return f"kill {PAIR}: {len(members)} processes"

    async def _kill_everything(self) -> str:
        members = self.system.members()
        for member in members:
            psutil.Process(member.pid).kill()
        self.replica.kill()
        await asyncio.to_thread(kill_all, self.postgres)
        await asyncio.to_thread(start_again, self.postgres)
        self.replica.start()
        await self.system.wait_ready(members, READY_SECONDS)
        return f"kill everything: {len(members) + 2} processes"


def kill_all(postgres: Postgres) -> None:
    """SIGKILL the server and its children, which hold what it wrote down."""
    process = postgres.server.process
    assert process is not None
    children = psutil.Process(process.pid).children(recursive=True)
    postgres.server.stop(kill=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=10)


def start_again(postgres: Postgres) -> None:
    """Start the server, which recovers by its log."""
    postgres.server.start()
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            psycopg.connect(f"{postgres.server.url}/postgres", connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def run_ledger(
    options: Options, home: Path, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return what was done, found and counted; `problems` is empty if the ledger is right."""
    rng, injected = random.Random(f"{options.seed} ledger"), list[str]()
    with ready_scene(options, home) as (stack, postgres, url):
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers, read_bufsize=1 << 20
        ) as session:
            system = System(stack, session)
            replica = Replica(system)
            replica.start()
            try:
                await replica.ready(session)
                load = LedgerLoad(
                    session, [stack.url, replica.url], stack.model,
                    width=options.num_streams, num_tokens=options.num_tokens, rng=rng,
                )  # fmt: skip
                scene = Scene(stack, system, session, postgres, url, replica, load, rng, options)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(load.run())
                    for number in range(options.num_faults):
                        await load.flowing()
                        await asyncio.sleep(rng.uniform(0, options.max_wait_seconds))
                        role = options.faults[number % len(options.faults)]
                        injected.append(await scene.kill(role))
                        say(f"{injected[-1]}; {len(load.streams)} streams have ended")
                    await load.flowing()
                    load.stop()
                started = time.monotonic()
                verdict = await settled(load, url)
                seconds = time.monotonic() - started
            finally:
                replica.kill()
    return {
        "seed": options.seed,
        "injected": injected,
        "streams": len(load.streams),
        "settled_seconds": round(seconds, 1),
        **asdict(verdict),
    }


@contextlib.contextmanager
def ready_scene(options: Options, home: Path) -> Iterator[tuple[Stack, Postgres, str]]:
    """Start PostgreSQL, and a stack on it."""
    with postgres_server(is_durable=True) as postgres:
        url = postgres.new_database()
        environ = {
            **ENVIRON, "PAGODA_TOPOLOGY": options.topology, "PAGODA_GATEWAY_LEDGER_URL": url,
        }  # fmt: skip
        with running_stack(home, environ) as stack:
            yield stack, postgres, url


async def settled(load: LedgerLoad, url: str) -> Verdict:
    """Return the verdict once it is good, or after the time in which it should be."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        rows, published = await asyncio.to_thread(read_ledger, url)
        verdict = judge(load.streams, rows, published)
        if not verdict.problems or time.monotonic() > deadline:
            return verdict
        await asyncio.sleep(1)


def read_ledger(url: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the rows of all requests, and what workers say was published of each."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute(
            "SELECT request_id, outcome, output_tokens, closed_unix_seconds FROM usage"
            " WHERE tenant IS NOT NULL"
        ).fetchall()
        published = connection.execute(
            "SELECT request_id, sum(tokens)::int AS tokens FROM (SELECT request_id, sequence_index,"
            " max(first_index + published_tokens) AS tokens FROM sequence_usage"
            " WHERE role <> 'gateway' GROUP BY request_id, sequence_index) AS ends"
            " GROUP BY request_id"
        ).fetchall()
    return (
        {row["request_id"]: row for row in rows},
        {row["request_id"]: row["tokens"] for row in published},
    )


def main() -> int:
    """Run, print, write; 0 if the ledger is right."""
    default = Options()
    parser = argparse.ArgumentParser(prog="chaos.ledger")
    parser.add_argument("--streams", type=int, default=default.num_streams, help="at a time")
    parser.add_argument("--tokens", type=int, default=default.num_tokens, help="of a stream")
    parser.add_argument("--faults", type=int, default=default.num_faults)
    parser.add_argument("--only", choices=default.faults, help="this fault, again and again")
    parser.add_argument("--outage", type=float, nargs=2, default=default.outage_seconds)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--home", type=Path, default=ROOT / ".pagoda" / "chaos-ledger")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    options = Options(
        num_streams=arguments.streams,
        num_tokens=arguments.tokens,
        num_faults=arguments.faults,
        faults=(arguments.only,) if arguments.only else default.faults,
        outage_seconds=tuple(arguments.outage),
        seed=arguments.seed,
    )
    # As an exception, so that the stack is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    home = arguments.home / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    result = asyncio.run(run_ledger(options, home, lambda text: print(text, file=sys.stderr)))
    path = arguments.output / f"{datetime.now(UTC):%Y-%m-%d}-chaos-ledger.json"
    write_json(
        path,
        {
            "schema_version": 1,
            "provenance": provenance(["python", "-m", "chaos.ledger", *sys.argv[1:]]).as_dict(),
            "options": {name: getattr(options, name) for name in Options.__slots__},
            **result,
        },
    )
    for name in result:
        if name not in ("injected", "problems"):
            print(f"{name}: {result[name]}")
    print("\n".join(result["problems"][:20]) or "the ledger is right")
    if not result["problems"]:
        shutil.rmtree(home)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
