"""Fetching from and writing through to the real kvstore."""

from pathlib import Path

import pytest
from support.running_kvstore import running_kvstore
from support.servers import free_port
from support.worker_cluster import Answer, Cluster

from pagoda_engine import Engine
from pagoda_runtime.block_hash import split_hashes
from pagoda_worker.tiers import known_blocks

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))
NUM_FULL_BLOCKS = 6


@pytest.mark.parametrize("is_remote", [True, False])
async def test_blocks_written_by_one_worker_are_fetched_by_another(
    cluster: Cluster, tmp_path: Path, is_remote: bool
) -> None:
    async with running_kvstore(cluster, tmp_path / "store") as store:
        start = cluster.start_prefill if is_remote else cluster.start_decode
        decode = await cluster.start_decode("decode-1", kvstore_endpoint=store.endpoint)
        workers = [await start(f"worker-{i}", kvstore_endpoint=store.endpoint) for i in (1, 2)]

        async def generate(worker_id: str) -> Answer:
            plan = {"prefill_worker_id": worker_id} if is_remote else {}
            answer = await cluster.generate(
                "decode-1" if is_remote else worker_id,
                PROMPT,
                num_fetch_blocks=NUM_FULL_BLOCKS,
                **plan,
            )
            return await answer.finished()

        first = await generate("worker-1")
        await store.holds(first)
        second = await generate("worker-2")

        assert second.token_ids == first.token_ids == cluster.alone([PROMPT])[0]
        assert first.frames[0].cached.cpu == 0
        assert second.frames[0].cached.cpu == NUM_FULL_BLOCKS * 16
        assert second.frames[0].stages.kv_fetch_ms > 0
        assert workers[1].metric("pagoda_kv_fetched_blocks_total", tier="cpu") == NUM_FULL_BLOCKS
        for worker in (*workers, decode):
            await cluster.idle(worker)


async def test_consumer_does_not_write_what_its_producer_writes(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with running_kvstore(cluster, tmp_path / "store") as store:
        await cluster.start_decode("decode-1", kvstore_endpoint=store.endpoint)
        await cluster.start_prefill("prefill-1", write_through_bytes=0)
        answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
        await answer.finished()
        marker = await cluster.generate("decode-1", [9] * 40)
        await marker.finished()

        await store.holds(marker)

        assert not store.held & set(split_hashes(answer.request.block_hashes))


async def test_what_nobody_used_again_waits_until_no_worker_of_the_machine_computes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[set[bytes]] = []
    async with running_kvstore(cluster, tmp_path / "store") as store:

        def others_compute(_: Engine) -> bool:
            looks.append(set(store.held))
            return len(looks) < 4

        monkeypatch.setattr(Engine, "others_compute", others_compute)
        await cluster.start_decode(
            "decode-1", kvstore_endpoint=store.endpoint, write_through="reused"
        )
        answer = await cluster.generate("decode-1", PROMPT)
        await answer.finished()

        await store.holds(answer)

    hashes = set(split_hashes(answer.request.block_hashes))
    assert len(looks) >= 4
    assert not any(hashes & held for held in looks[:4])


async def test_a_kvstore_that_came_back_empty_is_given_what_is_used_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_blocks, "SURE_SECONDS", 0.0)
    port = free_port()
    async with running_kvstore(cluster, tmp_path / "lost", port=port) as store:
        await cluster.start_decode("decode-1", kvstore_endpoint=store.endpoint)
        answer = await cluster.generate("decode-1", PROMPT)
        await answer.finished()
        await store.holds(answer)

    async with running_kvstore(cluster, tmp_path / "empty", port=port) as store:
        again = await cluster.generate("decode-1", PROMPT)
        await again.finished()
        await store.holds(again)


async def test_absent_kvstore_is_a_miss(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1", kvstore_endpoint=f"127.0.0.1:{free_port()}")

    answer = await cluster.generate("decode-1", PROMPT, num_fetch_blocks=NUM_FULL_BLOCKS)

    assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]
    await cluster.idle(decode)
