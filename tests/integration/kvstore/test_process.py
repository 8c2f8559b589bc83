"""The kvstore as its own process: readiness, heartbeats, kill -9, restart, corruption on disk."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from integration.kvstore.kv_client import get, put, stub_for
from integration.kvstore.service_process import running_service
from support.servers import free_port
from support.stored_blocks import make_block

from pagoda.rpc.v1 import kv_event_pb2, status_pb2
from pagoda_kvstore.tiers.segment import HEADER_BYTES, RECORD_HEADER_BYTES
from pagoda_runtime import identity
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.status import WorkerDirectory

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ON_NVME = 'pagoda_kvstore_blocks{tier="nvme"} 4.0'


async def next_status(bus: Bus) -> status_pb2.WorkerStatus:
    directory, heard = WorkerDirectory(), asyncio.Queue[status_pb2.WorkerStatus | None]()
    directory.add_listener(lambda _, status: heard.put_nowait(status))
    subscription = await directory.subscribe(bus, status_pb2.ROLE_KVSTORE)
    async with asyncio.timeout(60):
        while (status := await heard.get()) is None:
            pass
    await subscription.unsubscribe()
    return status


async def test_content_survives_kill_and_damage_is_a_miss(
    nats_common: CommonSettings, bus: Bus
) -> None:
    port = free_port()
    blocks = [make_block(name, num_bytes=50_000) for name in "abcd"]
    hashes = [block.key.block_hash for block in blocks]
    token = nats_common.cluster_token.get_secret_value()
    with running_service("kvstore", nats_common, {"PAGODA_KVSTORE_GRPC_PORT": str(port)}) as kv:
        before = await next_status(bus)
        assert before.role == status_pb2.ROLE_KVSTORE
        assert before.host_id == identity.host_id()
        async with grpc_channel(f"127.0.0.1:{port}", token=token) as channel:
            stub = stub_for(channel)
            await put(stub, blocks)
            async with asyncio.timeout(60):
                # The store writes behind our back: wait until it says it has.
                while ON_NVME not in await asyncio.to_thread(kv.metrics):
                    pass
        kv.stop(signal.SIGKILL)
        (segment,) = (nats_common.home / "kvstore").glob("*.seg")
        flip_byte(
            segment, HEADER_BYTES + 2 * (RECORD_HEADER_BYTES + 50_000) + RECORD_HEADER_BYTES + 9
        )
        kv.start()
        after = await next_status(bus)
        assert (after.worker_id, after.epoch > before.epoch) == (before.worker_id, True)
        async with grpc_channel(f"127.0.0.1:{port}", token=token) as channel:
            stub = stub_for(channel)
            found = await get(stub, hashes)
            assert [block.payload for block in found] == [block.payload for block in blocks[:2]]
            assert {block.tier for block in found} == {kv_event_pb2.TIER_NVME}
            assert [b.payload for b in await get(stub, hashes[3:])] == [blocks[3].payload]
        assert 'pagoda_kvstore_bad_digests_total{tier="nvme"} 1.0' in kv.metrics()
        assert kv.stop() == 0


async def test_sigterm_writes_what_is_queued(nats_common: CommonSettings) -> None:
    port = free_port()
    blocks = [make_block(f"{i}", num_bytes=500_000) for i in range(40)]
    token = nats_common.cluster_token.get_secret_value()
    with running_service("kvstore", nats_common, {"PAGODA_KVSTORE_GRPC_PORT": str(port)}) as kv:
        async with grpc_channel(f"127.0.0.1:{port}", token=token) as channel:
            await put(stub_for(channel), blocks)
        assert kv.stop() == 0
        kv.start()
        async with grpc_channel(f"127.0.0.1:{port}", token=token) as channel:
            found = await get(stub_for(channel), [block.key.block_hash for block in blocks])
    assert len(found) == 40


async def test_a_damaged_id_does_not_end_the_start(nats_common: CommonSettings, bus: Bus) -> None:
    path = nats_common.home / "kvstore" / "store_id"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"kvstore-\xff3v9w2x8\n")
    with running_service(
        "kvstore", nats_common, {"PAGODA_KVSTORE_GRPC_PORT": str(free_port())}
    ) as kv:
        status = await next_status(bus)
        assert path.read_text() == f"{status.worker_id}\n"
        assert kv.stop() == 0


def test_unknown_setting_refuses_to_start(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pagoda_kvstore"],
        env={"PYTHONPATH": ":".join(sys.path), "PAGODA_KVSTORE_CPU_BYTE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "PAGODA_KVSTORE_CPU_BYTES" in result.stderr


def flip_byte(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
