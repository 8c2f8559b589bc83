"""Workers with quantised weights: one model among themselves, another one beside dense ones."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.worker_cluster import Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = pytest.mark.integration

RANDOM = random.Random(11)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90)]


@pytest_asyncio.fixture
async def int4_cluster(worker_common: CommonSettings, checkpoint: Path) -> AsyncIterator[Cluster]:
    common = worker_common.model_copy(update={"quantization": "int4"})
    model = load_model(checkpoint, EngineConfig(dtype="float32", quantization="int4"))
    async with Cluster.open(common, model) as opened:
        yield opened


async def test_disaggregated_tokens_equal_the_quantised_engine_alone(
    int4_cluster: Cluster, cluster: Cluster
) -> None:
    decode = await int4_cluster.start_decode("decode-1")
    await int4_cluster.start_prefill("prefill-1")

    assert await int4_cluster.tokens(PROMPTS) == int4_cluster.alone(PROMPTS)
    assert int4_cluster.alone(PROMPTS) != cluster.alone(PROMPTS)
    assert decode.metric("pagoda_prefill_tokens_total") == 0
    status = await int4_cluster.status("decode-1", lambda status: True)
    assert (status.model.quantization, status.model.dtype) == ("int4", "float32")


async def test_kv_of_another_format_is_not_taken(int4_cluster: Cluster, cluster: Cluster) -> None:
    """Routers keep the two apart; this asks as no router does."""
    decode = await int4_cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    dense = await cluster.status("prefill-1", lambda status: True)
    coded = await int4_cluster.status("decode-1", lambda status: True)
    assert dense.model.quantization == "none"
    assert dense.model.kv_identity != coded.model.kv_identity

    answer = await int4_cluster.generate("decode-1", PROMPTS[-1], prefill_worker_id="prefill-1")
    await answer.finished()
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == 0
    assert decode.metric("pagoda_prefill_tokens_total") == len(PROMPTS[-1])
