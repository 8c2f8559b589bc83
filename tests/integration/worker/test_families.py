"""A prefill and a decode worker of each kind of layers: tokens are transformers', cold and warm."""

import random
from pathlib import Path

import pytest
from support.family_checkpoints import make_family_checkpoint
from support.greedy_oracle import GreedyOracle
from support.worker_cluster import GREEDY, Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RANDOM = random.Random(15)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90)]
# Windows in every layer or in some (Llama, without any, is what all other tests of workers have),
# experts and norms of Q and K, norms around each part, both parts at once, learned positions,
# ALiBi, sinks and experts in 4 bits, heads that turn in part, latents for KV, heads of two
# sizes, with layers that have no KV or experts beside a dense part.
KINDS = (
    *("mistral", "qwen2", "qwen3_moe", "gemma3", "cohere", "gpt2", "bloom", "gpt_oss_mxfp4"),
    *("gpt_neox", "deepseek_v3", "gemma4_small", "gemma4_moe"),
)
OPTIONS = {  # too few layers with windows for blocks in parts
    "gemma4_moe": {"layer_types": [*["full_attention"] * 3, "sliding_attention", "full_attention"]}
}


@pytest.mark.parametrize("device", ["synchronous"], indirect=True)
@pytest.mark.parametrize("family", KINDS)
async def test_tokens_through_both_workers_are_those_of_transformers(
    worker_common: CommonSettings, tmp_path: Path, family: str
) -> None:
    folder = make_family_checkpoint(tmp_path / family, family, **OPTIONS.get(family, {}))
    common = worker_common.model_copy(update={"model": str(folder)})
    model = load_model(folder, EngineConfig(dtype="float32"))
    oracle = GreedyOracle(folder)
    async with Cluster.open(common, model) as cluster:
        decode = await cluster.start_decode("decode-1")
        # By layers where that can be: those of unlike heads are pushed as whole blocks.
        prefill = await cluster.start_prefill("prefill-1", num_layer_groups=2)
        cold, computed = (
            await cluster.tokens(PROMPTS),
            prefill.metric("pagoda_prefill_tokens_total"),
        )
        assert cold == await cluster.tokens(PROMPTS)
        assert cold == oracle.all_greedy(PROMPTS, GREEDY.max_tokens, cold)
        assert prefill.metric("pagoda_prefill_tokens_total") - computed < computed
        assert decode.metric("pagoda_prefill_tokens_total") == 0
        for worker in (decode, prefill):
            await cluster.idle(worker)
