"""Measures KV transfer between two processes on this host.

    python benchmarks/kv_transfer.py [--mib 64] [--repeats 12] [--nixl]

Ways: payloads in gRPC messages; the consumer reads the producer's pool in shared memory; the same
by NIXL, whose threads disturb the others. Everything of the product's path is in it: blocks
digested in one pool, read or sent, verified, written to another pool. What arrived is compared byte
for byte. Prints a table, writes benchmarks/results/<date>-kv-transfer.json.
"""

import argparse
import asyncio
import datetime
import itertools
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc.aio
import torch
import uvloop

from pagoda.rpc.v1 import kv_transfer_pb2_grpc
from pagoda_cli.bench.provenance import provenance
from pagoda_engine import KvCache, KvLayout
from pagoda_engine.cache.peer_pool import PoolExport, exportable_cache
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.rpc_server import grpc_server
from pagoda_worker.kv_transfer.base import LeaseTarget, PushTrailer
from pagoda_worker.kv_transfer.consumer import KvConsumer
from pagoda_worker.kv_transfer.digests import digest_blocks
from pagoda_worker.kv_transfer.grpc_producer import ExportedPool, GrpcProducer
from pagoda_worker.kv_transfer.leases import LeaseTable
from pagoda_worker.kv_transfer.nixl_pool import NixlExport
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks

RESULTS = Path(__file__).parent / "results"
LAYOUT = KvLayout(num_layers=8, block_size=16, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
IDENTITY = bytes(16)
EPOCH = "benchmark"
TURNS = 3  # of each way, so that a disturbance meets all


async def consume(num_blocks: int) -> None:
    """The other process: opens the leases that stdin names, answers with digests on stdout."""
    cache = KvCache(LAYOUT, num_blocks, torch.device("cpu"))
    leases = LeaseTable(EPOCH, lease_seconds=600, clock=time.monotonic)
    consumer = KvConsumer(
        leases,
        kv_cache=cache,
        kv_identity=IDENTITY,
        executor=ThreadPoolExecutor(2),
        on_bad_blocks=lambda count: sys.exit(f"{count} bad blocks"),
    )

    def add(server: grpc.aio.Server) -> None:
        kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(consumer, server)

    async with grpc_server(host="127.0.0.1", port=0, token="", add=add) as port:
        _say({"port": port})
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            block_ids = range(command["num_blocks"])
            if command["lease_id"]:
                blocks = ReservedBlocks(cache, block_ids, first_block=0)
                leases.open(command["lease_id"], sequence_id="s", producer_id="p", blocks=blocks)
                _say({"ready": True})
            else:
                digests = digest_blocks(cache.read_blocks(block_ids).numpy())
                _say({"digests": [digest.hex() for digest in digests]})


async def produce(total_bytes: int, repeats: int, *, with_nixl: bool) -> list[dict[str, Any]]:
    """Push to a fresh consumer process, each way and size, `repeats` times."""
    num_blocks = total_bytes // LAYOUT.block_bytes
    cache = exportable_cache(LAYOUT, num_blocks, torch.device("cpu"))
    cache.tensor.normal_()
    pools: dict[str, ExportedPool | None] = {
        "gRPC payloads": None,
        "shared memory": PoolExport(cache),
    }
    if with_nixl:
        pools["NIXL"] = NixlExport(cache)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--consumer",
        str(num_blocks),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    rows = []
    try:
        port = (await _hear(process))["port"]
        producers = {
            name: GrpcProducer(
                cache,
                kv_identity=IDENTITY,
                open_channel=lambda endpoint: grpc_channel(endpoint, token=""),
                executor=ThreadPoolExecutor(2),
                pool=pool,
            )
            for name, pool in pools.items()
        }
        for count in (1, 16, num_blocks):
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in producers}
            for turn, (name, producer) in itertools.product(range(TURNS), producers.items()):
                cache.tensor[0, 0, :, 0, 0, 0].normal_()  # what came before is not enough
                for i in range(repeats // TURNS + 1):
                    lease_id = f"{name}-{count}-{turn}-{i}"
                    seconds = await _push(process, producer, port, lease_id, count)
                    if i:
                        taken[name].append(seconds)
                    else:  # the first warms up
                        await _check(process, cache, count)
            rows += [_row(name, count, seconds) for name, seconds in taken.items()]
        for producer in producers.values():
            await producer.close()
    finally:
        process.terminate()
        await process.wait()
    return rows


async def _push(
    process: asyncio.subprocess.Process,
    producer: GrpcProducer,
    port: int,
    lease_id: str,
    count: int,
) -> tuple[float, float]:
    """Return the seconds that passed, and those of processors in both processes."""
    await _tell(process, {"lease_id": lease_id, "num_blocks": count})
    await _hear(process)
    cpu_started = _cpu_seconds(os.getpid()) + _cpu_seconds(process.pid)
    started = time.perf_counter()
    push = producer.push(LeaseTarget(lease_id, EPOCH, f"127.0.0.1:{port}"), timeout_seconds=60)
    await push.send(0, range(count))
    summary = await push.finish(PushTrailer(16 * count, 1, False))
    seconds = time.perf_counter() - started
    cpu_seconds = _cpu_seconds(os.getpid()) + _cpu_seconds(process.pid) - cpu_started
    await push.close()
    assert summary.num_blocks == count
    assert not summary.bad_blocks
    return seconds, cpu_seconds


def _cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def _check(process: asyncio.subprocess.Process, cache: KvCache, count: int) -> None:
    await _tell(process, {"lease_id": "", "num_blocks": count})
    expected = [d.hex() for d in digest_blocks(cache.read_blocks(range(count)).numpy())]
    assert (await _hear(process))["digests"] == expected, "the pools differ"


def _row(name: str, count: int, taken: list[tuple[float, float]]) -> dict[str, Any]:
    num_bytes = count * LAYOUT.block_bytes
    seconds, cpu_seconds = zip(*taken, strict=True)
    return {
        "transport": name,
        "bytes": num_bytes,
        "blocks": count,
        "p50_ms": statistics.median(seconds) * 1e3,
        "best_ms": min(seconds) * 1e3,
        "worst_ms": max(seconds) * 1e3,
        "p50_cpu_ms": statistics.median(cpu_seconds) * 1e3,
        "p50_gb_per_second": num_bytes / statistics.median(seconds) / 1e9,
        "best_gb_per_second": num_bytes / min(seconds) / 1e9,
    }


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


async def _tell(process: asyncio.subprocess.Process, value: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value).encode() + b"\n")
    await process.stdin.drain()


async def _hear(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        sys.exit("the consumer process ended")
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the large push")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--nixl", action="store_true", help="pip install 'pagoda-worker[nixl]'")
    parser.add_argument("--consumer", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.repeats < TURNS:
        parser.error(f"--repeats {arguments.repeats}: at least {TURNS}")
    torch.set_num_threads(1)
    if arguments.consumer:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(consume(arguments.consumer))
        return
    load_before = os.getloadavg()[0]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(
            produce(arguments.mib * 2**20, arguments.repeats, with_nixl=arguments.nixl)
        )
    heads = ("KiB", "p50 ms", "best ms", "CPU ms", "p50 GB/s", "best GB/s")
    print(f"{'transport':15}" + "".join(f"{head:>10}" for head in heads))
    for row in rows:
        values = (
            row["p50_ms"],
            row["best_ms"],
            row["p50_cpu_ms"],
            row["p50_gb_per_second"],
            row["best_gb_per_second"],
        )
        numbers = "".join(f"{value:10.2f}" for value in values)
        print(f"{row['transport']:15}{row['bytes'] // 1024:10}{numbers}")
    result = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "provenance": provenance(["python", *sys.argv]).as_dict(),
        "load_average_before": load_before,
        "block_bytes": LAYOUT.block_bytes,
        "repeats": arguments.repeats,
        "rows": rows,
    }
    path = RESULTS / f"{datetime.date.today().isoformat()}-kv-transfer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
