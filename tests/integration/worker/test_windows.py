"""Workers of models with windows, of all layers or some: what is handed over, what is not held."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.family_checkpoints import make_family_checkpoint
from support.running_kvstore import running_kvstore
from support.tiny_checkpoints import make_tiny_checkpoint
from support.worker_cluster import BLOCK_SIZE, Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = pytest.mark.integration

WINDOW = 27
UNLIKE = "some layers, with other heads"
RANDOM = random.Random(14)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90, 200)]


@pytest_asyncio.fixture(params=["all layers", "some layers", UNLIKE])
async def cluster(
    worker_common: CommonSettings, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    folder = tmp_path / "windows"
    if request.param == "all layers":
        make_tiny_checkpoint(folder, "mistral")
    else:
        family, count = ("olmo3", 3) if request.param == "some layers" else ("gemma4", 7)
        layers = [*["sliding_attention"] * count, "full_attention"]
        make_family_checkpoint(
            folder,
            family,
            num_hidden_layers=len(layers),
            layer_types=layers,
            sliding_window=WINDOW,
        )
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
    groups = cluster.model.kv_layout(BLOCK_SIZE).groups
    if groups is None:
        blocks = sum(-(-n // BLOCK_SIZE) - max(0, n - WINDOW) // BLOCK_SIZE for n in lengths)
    else:  # a part of all, and the others of those that are seen from the last full block's end on
        windowed = groups.num_windowed
        seen_from = [max(0, (n - 1) // BLOCK_SIZE * BLOCK_SIZE + 1 - WINDOW) for n in lengths]
        parts = [-(-len(p) // BLOCK_SIZE) for p in PROMPTS]
        blocks = sum(parts) - sum(first // BLOCK_SIZE for first in seen_from) * windowed / (
            1 + windowed
        )
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


@pytest.mark.parametrize("cluster", ["some layers", UNLIKE], indirect=True)
@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_a_prompt_may_be_longer_than_the_blocks_of_a_pool_hold(
    cluster: Cluster, prefill_worker_id: str
) -> None:
    small = {"num_blocks": 12, "max_num_batched_tokens": 16}
    decode = await cluster.start_decode("decode-1", **small)
    prefill = await cluster.start_prefill("prefill-1", **small)
    prompt = [RANDOM.randrange(250) for _ in range(300)]
    assert len(prompt) > 12 * BLOCK_SIZE
    expected = cluster.alone([prompt])
    for _ in range(2):
        answer = await cluster.generate("decode-1", prompt, prefill_worker_id=prefill_worker_id)
        assert [(await answer.finished()).token_ids] == expected
    num_prefilled = decode.metric("pagoda_prefill_tokens_total")
    assert num_prefilled == 0 if prefill_worker_id else num_prefilled >= len(prompt)
    for worker in (decode, prefill):
        await cluster.idle(worker)
