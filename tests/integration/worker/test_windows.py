"""Workers of a model whose every layer has a window: what is handed over, and what is not held."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.running_kvstore import running_kvstore
from support.tiny_checkpoints import make_tiny_checkpoint
from support.worker_cluster import BLOCK_SIZE, Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = pytest.mark.integration

WINDOW = 27
RANDOM = random.Random(14)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90, 200)]


@pytest_asyncio.fixture
async def cluster(worker_common: CommonSettings, tmp_path: Path) -> AsyncIterator[Cluster]:
    folder = make_tiny_checkpoint(tmp_path / "windows", "mistral")
    common = worker_common.model_copy(update={"model": str(folder)})
    async with Cluster.open(common, load_model(folder, EngineConfig(dtype="float32"))) as opened:
        yield opened


async def tokens(cluster: Cluster, worker_id: str, num_fetch_blocks: int = 0) -> list[list[int]]:
    answers = await asyncio.gather(
        *(
            cluster.generate(
                "decode-1", p, prefill_worker_id=worker_id, num_fetch_blocks=num_fetch_blocks
            )
            for p in PROMPTS
        )
    )
    return [(await answer.finished()).token_ids for answer in answers]


async def test_only_what_is_read_is_handed_over(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    expected = cluster.alone(PROMPTS)
    assert await tokens(cluster, "prefill-1") == expected
    assert decode.metric("pagoda_prefill_tokens_total") == 0
    block_bytes = (await cluster.status("decode-1", lambda status: True)).model.block_bytes
    lengths = map(len, PROMPTS)
    blocks = sum(-(-n // BLOCK_SIZE) - max(0, n - WINDOW) // BLOCK_SIZE for n in lengths)
    received = decode.metric("pagoda_kv_transfer_bytes_total", direction="received")
    assert received == blocks * block_bytes
    assert received < sum(-(-len(p) // BLOCK_SIZE) for p in PROMPTS) * block_bytes / 1.5

    warm = prefill.metric("pagoda_prefill_tokens_total")
    assert await tokens(cluster, "prefill-1") == expected
    assert prefill.metric("pagoda_prefill_tokens_total") - warm < warm / 2
    for worker in (decode, prefill):
        await cluster.idle(worker)


async def test_without_a_producer_the_prompt_is_computed_here(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    assert await tokens(cluster, "prefill-absent") == cluster.alone(PROMPTS)
    assert decode.metric("pagoda_prefill_tokens_total") == sum(map(len, PROMPTS))
    await cluster.idle(decode)


async def test_blocks_come_from_the_store(cluster: Cluster, tmp_path: Path) -> None:
    async with running_kvstore(cluster, tmp_path / "store") as store:
        await cluster.start_decode("decode-1", kvstore_endpoint=store.endpoint)
        await cluster.start_prefill("prefill-1", kvstore_endpoint=store.endpoint)
        other = await cluster.start_prefill("prefill-2", kvstore_endpoint=store.endpoint)
        answer = await cluster.generate("decode-1", PROMPTS[-1], prefill_worker_id="prefill-1")
        await store.holds(await answer.finished())
        assert await tokens(cluster, "prefill-2", num_fetch_blocks=12) == cluster.alone(PROMPTS)
        assert other.metric("pagoda_kv_fetched_blocks_total", tier="cpu") >= 12
        await cluster.idle(other)
