"""Workers of a model whose KV is one latent for all heads: it is what goes between them."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.family_checkpoints import make_family_checkpoint
from support.worker_cluster import BLOCK_SIZE, Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = pytest.mark.integration

RANDOM = random.Random(12)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90)]


@pytest_asyncio.fixture
async def latent_cluster(worker_common: CommonSettings, tmp_path: Path) -> AsyncIterator[Cluster]:
    folder = make_family_checkpoint(tmp_path / "latents", "deepseek_v2")
    common = worker_common.model_copy(update={"model": str(folder)})
    async with Cluster.open(common, load_model(folder, EngineConfig(dtype="float32"))) as opened:
        yield opened


async def test_latents_are_handed_over_and_cold_is_as_warm(latent_cluster: Cluster) -> None:
    cluster = latent_cluster
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    cold, computed = await cluster.tokens(PROMPTS), prefill.metric("pagoda_prefill_tokens_total")
    assert cold == await cluster.tokens(PROMPTS) == cluster.alone(PROMPTS)
    assert decode.metric("pagoda_prefill_tokens_total") == 0
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") > 0
    assert prefill.metric("pagoda_prefill_tokens_total") - computed < computed
    status = await cluster.status("decode-1", lambda status: True)
    num_layers, latent_width, itemsize = 2, 32 + 8, 4
    assert status.model.block_bytes == BLOCK_SIZE * num_layers * latent_width * itemsize
