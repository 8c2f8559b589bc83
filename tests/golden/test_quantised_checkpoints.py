"""Quantised checkpoints against transformers with what their codes stand for, in fp32."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.deepseek_fp8 import make_deepseek_fp8
from support.engine_driver import EngineDriver
from support.greedy_oracle import GreedyOracle
from support.prompt_logits import prompt_logits
from support.quantised_checkpoints import (
    Format,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    quantised_pair,
)
from support.random_tokens import random_tokens
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams, load_model

pytestmark = pytest.mark.slow

PROMPTS = [random_tokens(70), random_tokens(41), random_tokens(5)]
FORMATS: dict[str, Format] = {
    "gptq-4": gptq(),
    "gptq-4-whole": gptq(group_size=-1),
    "gptq-4-asym": gptq(sym=False),
    "gptq-4-v2": gptq(sym=False, version=2),
    "gptq-4-act": gptq(desc_act=True),
    "gptq-4-act-asym": gptq(desc_act=True, sym=False),
    "gptq-4-biased": gptq(group_size=64, has_zero_bias=True),
    "gptq-8": gptq(8),
    "gptq-8-whole": gptq(8, -1),
    "gptq-8-asym": gptq(8, sym=False),
    "awq": awq(),
    "awq-whole": awq(-1),
    "fp8": fp8(),
    "fp8-blocks": fp8((128, 128)),
    "ct-fp8-tensor": compressed_tensors("float-quantized", "tensor"),
    "ct-fp8-channel": compressed_tensors("float-quantized", "channel"),
    "ct-fp8-block": compressed_tensors("float-quantized", "block"),
    "ct-int4-group": compressed_tensors("pack-quantized", "group", 4, 32),
    "ct-int4-group-asym": compressed_tensors("pack-quantized", "group", 4, 32, sym=False),
    "ct-int4-channel": compressed_tensors("pack-quantized", "channel", 4),
    "ct-int8-group": compressed_tensors("pack-quantized", "group", 8, 32),
    "ct-int8-bytes": compressed_tensors("int-quantized", "channel"),
}


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(path, EngineConfig(max_model_len=512, **{"dtype": "float32", **options}))


def logit_error(model: LoadedModel, oracle: GreedyOracle) -> float:
    """Return the relative norm of the error over all prompts."""
    error = norm = 0.0
    for prompt in PROMPTS:
        with torch.no_grad():
            expected = oracle.reference(torch.tensor([prompt])).logits[0]
        error += float((prompt_logits(model, prompt).float() - expected).square().sum())
        norm += float(expected.square().sum())
    return (error / norm) ** 0.5


@pytest.mark.parametrize("name", FORMATS)
def test_logits_and_64_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    # Wider than a block of 128, and no multiple of it.
    sizes = {"hidden_size": 192, "intermediate_size": 160}
    folder = make_tiny_checkpoint(tmp_path / "model", "llama", **sizes)
    coded, dense = quantised_pair(folder, FORMATS[name])
    oracle, model = GreedyOracle(dense), load(coded)
    assert logit_error(model, oracle) < 1e-4
    assert logit_error(load(folder), oracle) > 1e-3, "rounding to the format shows"
    outputs = greedy(model)
    assert outputs == oracle.all_greedy(PROMPTS, 64, outputs)


def greedy(model: LoadedModel) -> list[list[int]]:
    config = EngineConfig(
        block_size=8, num_blocks=128, dtype="float32", max_model_len=512, max_num_batched_tokens=24
    )
    sampling = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    return EngineDriver(model, config).generate(PROMPTS, sampling=sampling)


def test_deepseek_as_it_is_published(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Latent attention, experts in groups, e4m3 in blocks, a layer that predicts further tokens."""
    coded, dense = make_deepseek_fp8(tmp_path / "model")
    oracle = GreedyOracle(dense)
    with caplog.at_level(logging.INFO):
        model = load(coded)
    assert logit_error(model, oracle) < 1e-4
    assert logit_error(load(tmp_path / "model"), oracle) > 1e-3, "rounding to the format shows"
    outputs = greedy(model)
    assert outputs == oracle.all_greedy(PROMPTS, 64, outputs)
    assert "fp8 (e4m3, blocks of 128 x 128)" in caplog.text
    assert "model.layers.2 is left out" in caplog.text


@pytest.mark.parametrize("name", ["gptq-4", "awq", "fp8-blocks", "ct-int4-group"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe", "mixtral"])
def test_other_families(family: str, name: str, tmp_path: Path) -> None:
    """Biases, tied embeddings, heads wider than the hidden size, experts."""
    sizes: dict[str, Any] = {"intermediate_size": 96}
    if family == "qwen2":
        sizes |= {"hidden_size": 96, "use_sliding_window": False, "sliding_window": None}
    folder = make_tiny_checkpoint(tmp_path / "model", family, **sizes)
    skip = ["block_sparse_moe.gate"]  # routers stay dense everywhere
    coded, dense = quantised_pair(folder, FORMATS[name], skip=skip)
    assert logit_error(load(coded), GreedyOracle(dense)) < 1e-4
