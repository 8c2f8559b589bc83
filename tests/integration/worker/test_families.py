"""A prefill and a decode worker of each kind of layers: tokens are transformers', cold and warm."""

import random
from pathlib import Path

import pytest
from support.family_checkpoints import make_family_checkpoint
from support.greedy_oracle import GreedyOracle
from support.tiny_checkpoints import FAMILIES, make_tiny_checkpoint
from support.worker_cluster import GREEDY, Cluster

from pagoda_engine import EngineConfig, load_model
from pagoda_runtime.configuration.settings import CommonSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RANDOM = random.Random(15)
PROMPTS = [[RANDOM.randrange(250) for _ in range(length)] for length in (1, 16, 33, 90)]
# Norms around each part, both parts at once, learned positions, latents for KV.
OTHER_LAYERS = ("gemma3", "cohere", "gpt2", "deepseek_v3")


@pytest.mark.parametrize("device", ["synchronous"], indirect=True)
@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_LAYERS])
async def test_tokens_through_both_workers_are_those_of_transformers(
    worker_common: CommonSettings, tmp_path: Path, family: str
) -> None:
    make = make_tiny_checkpoint if family in FAMILIES else make_family_checkpoint
    folder = make(tmp_path / family, family)
    common = worker_common.model_copy(update={"model": str(folder)})
    model = load_model(folder, EngineConfig(dtype="float32"))
    oracle = GreedyOracle(folder)
    expected = [oracle.greedy(prompt, GREEDY.max_tokens) for prompt in PROMPTS]
    async with Cluster.open(common, model) as cluster:
        decode = await cluster.start_decode("decode-1")
        prefill = await cluster.start_prefill("prefill-1")
        cold, computed = (
            await cluster.tokens(PROMPTS),
            prefill.metric("pagoda_prefill_tokens_total"),
        )
        assert cold == await cluster.tokens(PROMPTS) == expected
        assert prefill.metric("pagoda_prefill_tokens_total") - computed < computed
        assert decode.metric("pagoda_prefill_tokens_total") == 0
        for worker in (decode, prefill):
            await cluster.idle(worker)
