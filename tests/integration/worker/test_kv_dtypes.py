"""Workers whose KV is of one byte: what goes between them, to the store, and what does not."""

import asyncio
import random
from pathlib import Path

import pytest
from support.running_kvstore import running_kvstore
from support.worker_cluster import BLOCK_SIZE, Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = pytest.mark.integration

RANDOM = random.Random(13)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90)]
DTYPES = {"fp8": "float8_e4m3fn", "int8": "int8"}


def opened(common: CommonSettings, checkpoint: Path, kv: str):
    model = load_model(checkpoint, EngineConfig(dtype="float32", kv_cache_dtype=kv))
    return Cluster.open(common.model_copy(update={"kv_cache_dtype": kv}), model)


@pytest.mark.parametrize("kv", DTYPES)
async def test_blocks_go_to_the_decode_worker_the_store_and_back(
    worker_common: CommonSettings, checkpoint: Path, tmp_path: Path, kv: str
) -> None:
    async with (
        opened(worker_common, checkpoint, kv) as cluster,
        running_kvstore(cluster, tmp_path) as store,
    ):
        fields = {"kvstore_endpoint": store.endpoint}
        decode = await cluster.start_decode("decode-1", **fields)
        prefill = await cluster.start_prefill("prefill-1", **fields)

        async def answers(worker_id: str, num_fetch_blocks: int = 0) -> list:
            started = [
                await cluster.generate(
                    "decode-1", p, prefill_worker_id=worker_id, num_fetch_blocks=num_fetch_blocks
                )
                for p in PROMPTS
            ]
            return await asyncio.gather(*(answer.finished() for answer in started))

        cold = await answers("prefill-1")
        computed = prefill.metric("pagoda_prefill_tokens_total")
        warm = await answers("prefill-1")
        expected = cluster.alone(PROMPTS)
        assert [a.token_ids for a in cold] == [a.token_ids for a in warm] == expected
        assert prefill.metric("pagoda_prefill_tokens_total") - computed < computed
        assert decode.metric("pagoda_prefill_tokens_total") == 0
        assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") > 0

        await store.holds(cold[-1])
        other = await cluster.start_prefill("prefill-2", **fields)
        fetched = await answers("prefill-2", num_fetch_blocks=5)
        assert [answer.token_ids for answer in fetched] == expected
        assert other.metric("pagoda_kv_fetched_blocks_total", tier="cpu") >= 5

        model = (await cluster.status("decode-1", lambda status: True)).model
        assert (model.dtype, model.kv_cache_dtype) == ("float32", DTYPES[kv])
        description = cluster.model.description
        per_token = 2 * description.num_layers * description.num_kv_heads * description.head_dim
        assert model.block_bytes == BLOCK_SIZE * per_token
        for worker in (decode, prefill, other):
            await cluster.idle(worker)


async def test_a_block_of_another_number_format_is_never_taken(
    worker_common: CommonSettings, checkpoint: Path, cluster: Cluster
) -> None:
    """Routers keep them apart; this asks as no router does."""
    async with opened(worker_common, checkpoint, "fp8") as coded:
        decode = await coded.start_decode("decode-1")
        await cluster.start_prefill("prefill-1")
        identities = {
            (await each.status(name, lambda status: True)).model.kv_identity
            for each, name in ((coded, "decode-1"), (cluster, "prefill-1"))
        }
        assert len(identities) == 2
        answer = await coded.generate("decode-1", PROMPTS[-1], prefill_worker_id="prefill-1")
        await answer.finished()
        assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == 0
        assert decode.metric("pagoda_prefill_tokens_total") == len(PROMPTS[-1])
