"""What limits cost a request: the script alone, and through a gateway.

    python benchmarks/serving/limits_cost.py                    # 1, 64, 512 streams

Key, tenant and organisation each have all five limits, none of which is reached. Alone: so many
loops take and settle. Through a gateway: streams of a key with these limits and of one without any,
in turn, at the same gateway; the worker computes nothing (`null_worker.py`).
"""

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import secrets
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import uvloop
from driving.stream_client import StreamLoad, through_gateway
from gateway_cost import PROMPT, VOCAB, quantiles
from redis.asyncio import Redis
from running.processes import BIN, GatewayAlone, cpu_seconds, gateway_alone, listens, started
from running.processes import wait_until as wait

from pagoda_cli.endpoint import Endpoint
from pagoda_cli.up.ports import pick_port
from pagoda_gateway.accounts.database import open_database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.counters import connected_counters
from pagoda_gateway.accounts.limits.hold import Amount, Hold
from pagoda_gateway.accounts.limits.limiter import Limiter
from pagoda_gateway.accounts.limits.spending import Spending
from pagoda_gateway.accounts.money.price_book import PriceBook

PLENTY = 1 << 50
LIMITS = {
    "requests_per_minute": PLENTY, "tokens_per_minute": PLENTY, "concurrent_requests": PLENTY,
    "daily_budget_micros": PLENTY, "monthly_budget_micros": PLENTY,
}  # fmt: skip
SCOPES = tuple(
    LimitScope(kind, name, **LIMITS)  # type: ignore[arg-type]
    for kind, name in (("key", "key-1"), ("tenant", "t"), ("organisation", "acme"))
)
NUM_TOKENS = 4
STEP_MS = 10.0


async def alone(url: str, folder: Path, num_loops: int, num_requests: int) -> dict[str, Any]:
    """Take and settle; return what it took."""
    key = ApiKey("key-1", "t", organisation="acme", scopes=SCOPES)
    took: list[float] = []
    async with (
        open_database(f"sqlite:///{folder}/ledger.sqlite") as database,
        connected_counters(url, timeout_seconds=10.0) as counters,
        Redis.from_url(url) as redis,
    ):
        limiter = Limiter(counters, Spending(database, PriceBook()), grace_seconds=0.0)
        background = asyncio.create_task(limiter.run(is_needed=True))
        amount = Amount(300, 1000)

        async def loop(name: str, number: int) -> None:
            for index in range(number):
                hold = Hold(f"{name}-{index}", key, amount, lambda: amount)
                began = time.perf_counter()
                assert (await limiter.take(hold)).kind == "taken"
                took.append(time.perf_counter() - began)
                limiter.settle(hold, Amount(200, 500))

        await loop("warm", 20)
        took.clear()
        await redis.config_resetstat()
        before = await redis.info("cpu")
        began, cpu = time.perf_counter(), time.process_time()
        each = max(1, num_requests // num_loops)
        await asyncio.gather(*(loop(str(number), each) for number in range(num_loops)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
        await limiter.flush()
        stats = (await redis.info("commandstats"))["cmdstat_evalsha"]
        after = await redis.info("cpu")
        background.cancel()
    used = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    return {
        "loops": num_loops,
        "requests": len(took),
        "take_ms": [round(value, 3) for value in quantiles(took)],
        "requests_per_s": round(len(took) / wall),
        "own_cpu_us_per_request": round(1e6 * cpu / len(took)),
        "script_calls_per_request": round(stats["calls"] / len(took), 2),
        "redis_cpu_us_per_request": round(1e6 * used / len(took)),
    }


def through(gateway: GatewayAlone, keys: dict[str, str], load: StreamLoad, repeats: int) -> None:
    """Print a row for each key, measured in turn."""
    ttft: dict[str, list[float]] = {name: [] for name in keys}
    cpu = dict.fromkeys(keys, 0.0)
    for _ in range(repeats):
        for name, key in keys.items():
            endpoint = dataclasses.replace(gateway.endpoint, api_key=key)
            before = cpu_seconds(gateway.gateway_pid)
            times = uvloop.run(through_gateway(endpoint, PROMPT, load))
            cpu[name] += cpu_seconds(gateway.gateway_pid) - before
            ttft[name] += [a.events()[0][0] - a.started for a in times.answers]
            assert not times.num_failed, (name, times.num_failed)
    for name in keys:
        row = {
            "streams": load.num_streams,
            "key": name,
            "requests": len(ttft[name]),
            "ttft_ms": [round(value, 2) for value in quantiles(ttft[name])],
            "gateway_cpu_us_per_request": round(1e6 * cpu[name] / len(ttft[name])),
        }
        print(json.dumps(row), flush=True)


def make_keys(endpoint: Endpoint, admin_key: str) -> dict[str, str]:
    """Make a tenant without limits and one with all of them; return their keys."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{endpoint.root_url}/admin/{path}",
            data=json.dumps(body).encode(),
            headers={"authorization": f"Bearer {admin_key}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            made: dict[str, Any] = json.loads(answer.read())
            return made

    ask("tiers", {"id": "plenty", **LIMITS})
    ask("organisations", {"id": "acme", "tier": "plenty"})
    ask("tenants", {"id": "limited", "organisation": "acme", "tier": "plenty"})
    ask("tenants", {"id": "free"})
    return {
        "no limits": ask("keys", {"tenant": "free"})["key"],
        "15 limits": ask("keys", {"tenant": "limited", "tier": "plenty"})["key"],
    }


def main() -> None:
    """Measure and print, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("demo/model"), help="for its tokenizer")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--requests", type=int, default=2000, help="of each run")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), pick_port()
        command = [str(BIN / "redis-server"), "--port", str(port), "--save", "", "--dir", name]
        with started(folder / "redis.log", command, {}) as redis:
            wait(lambda: listens(port), redis, folder / "redis.log")
            url = f"redis://127.0.0.1:{port}/0"
            for num_streams in arguments.streams:
                print(json.dumps(uvloop.run(alone(url, folder, num_streams, arguments.requests))))
            admin_key = secrets.token_hex(16)
            further = {"PAGODA_REDIS_URL": url, "PAGODA_GATEWAY_ADMIN_KEY": admin_key}
            with gateway_alone(
                folder / "home", model=arguments.model, step_ms=STEP_MS, vocab=VOCAB,
                first_at_once=True, further=further, has_applier=True,
            ) as gateway:  # fmt: skip
                keys = make_keys(gateway.endpoint, admin_key)
                time.sleep(4)  # new counters let nobody in at once
                for num_streams in arguments.streams:
                    number = max(num_streams, 100 if num_streams == 1 else arguments.requests // 2)
                    load = StreamLoad(num_streams, number, NUM_TOKENS, NUM_TOKENS * STEP_MS / 1000)
                    through(gateway, keys, load, arguments.repeats)


if __name__ == "__main__":
    main()
