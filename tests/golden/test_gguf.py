"""Models as GGUF files answer as they do as folders; others hold those against transformers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_driver import EngineDriver
from support.family_checkpoints import make_family_checkpoint
from support.gguf_files import write_gguf
from support.greedy_oracle import GreedyOracle
from support.held_bytes import packed_bytes
from support.prompt_logits import prompt_logits
from support.random_tokens import random_tokens
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams, load_model
from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS
from pagoda_engine.models.model_files import open_model
from pagoda_engine.models.weights.num_bytes import Stored, weight_bytes

pytestmark = pytest.mark.slow

PROMPTS = [random_tokens(70), random_tokens(41), random_tokens(5)]
FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DEEPSEEK_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_biased": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama_yarn": {
        "family": "llama",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "mixtral": {},
    "qwen2": {"use_sliding_window": None},
    "qwen2_moe": {"mlp_only_layers": []},
    "qwen3": {},
    "qwen3_moe": {"mlp_only_layers": []},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {
        "query_pre_attn_scalar": 16,
        "metadata": {"attention__sliding_window_pattern": 2, "rope__scaling__type": "linear"},
    },
    "phi3": {},
    "phi3_long": {},
    "starcoder2": {"sliding_window": None},
    "cohere": {},
    "granite": {},
    "deepseek_v2": {},
    "deepseek_v2_groups": {
        "family": "deepseek_v2",
        "q_lora_rank": 20,
        "topk_method": "group_limited_greedy",
        "n_group": 3,
        "topk_group": 2,
        "rope_parameters": {**DEEPSEEK_ROPE, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek_v3": {"rope_parameters": {**DEEPSEEK_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "gpt_oss": {"swiglu_limit": None},
    "gpt_oss_mxfp4": {"swiglu_limit": None},
    "cohere2": {
        "num_hidden_layers": 5,
        "layer_types": [FULL if i == 3 else SLIDING for i in range(5)],
    },
    "glm": {},
    "glm4": {},
    "olmo2": {},
    "olmo3": {},
    "olmo3_yarn": {
        "family": "olmo3",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        "metadata": {"rope__scaling__attn_factor": 0.1 * math.log(8.0) + 1.0},
    },
    "olmoe": {"clip_qkv": None},
    "gpt2": {"n_inner": None},
    "gpt_neox": {"use_parallel_residual": True},
    "gpt_neox_sequential": {"hidden_act": "gelu"},
    "bloom": {},
    "mpt": {"attn_config": {"clip_qkv": 1.5}},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 4, "use_sliding_window": False},
}
WIDE = {"hidden_size": 256, "intermediate_size": 512}


def folder_of(model: str, path: Path, **fields: Any) -> Path:
    fields = {"family": model, **fields}
    family = fields.pop("family")
    make = make_tiny_checkpoint
    if family in ("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe"):
        return make(path, family, **fields)
    return make_family_checkpoint(path, family, **fields)


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(path, EngineConfig(max_model_len=512, **{"dtype": "float32", **options}))


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_those_of_the_folder(model: str, tmp_path: Path) -> None:
    fields = dict(MODELS[model])
    metadata = fields.pop("metadata", {})
    folder = folder_of(model, tmp_path / "folder", **fields)
    path = write_gguf(folder, tmp_path / "model.gguf", **metadata)
    expected, found = load(folder), load(path)
    for prompt in PROMPTS:
        of_file, of_folder = prompt_logits(found, prompt), prompt_logits(expected, prompt)
        if model == "smollm3":
            # Rows of heads that do not turn stay in the file's order: another order of additions.
            assert (of_file - of_folder).norm() < 1e-5 * of_folder.norm()
        else:
            assert torch.equal(of_file, of_folder)
    assert found.eos_token_ids <= expected.eos_token_ids | {258, 259}
    assert found.vocab_size == expected.vocab_size
    assert found.max_position_embeddings == expected.max_position_embeddings


def test_llama_3_rotations_are_worked_out_by_the_converter(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "folder", rope_scaling=LLAMA_3_ROPE)
    found = load(write_gguf(folder, tmp_path / "model.gguf"))
    for prompt in PROMPTS:
        expected = prompt_logits(load(folder), prompt)
        error = (prompt_logits(found, prompt) - expected).norm() / expected.norm()
        assert error < 1e-5
    plain = load(folder_of("llama", tmp_path / "plain"))
    assert not torch.allclose(prompt_logits(plain, PROMPTS[0]), prompt_logits(found, PROMPTS[0]))


@pytest.mark.parametrize("is_file_old", [True, False], ids=["joined", "by-head"])
def test_latents_of_both_converters_are_the_same(is_file_old: bool, tmp_path: Path) -> None:
    folder = folder_of("deepseek_v3", tmp_path / "folder", **MODELS["deepseek_v3"])
    path = write_gguf(folder, tmp_path / "model.gguf", has_kv_joined=is_file_old)
    expected, found = load(folder), load(path)
    for prompt in PROMPTS:
        assert torch.equal(prompt_logits(found, prompt), prompt_logits(expected, prompt))


def test_experts_in_mxfp4_are_held_as_their_codes(tmp_path: Path) -> None:
    folder = folder_of("gpt_oss_mxfp4", tmp_path / "folder", swiglu_limit=None)
    path = write_gguf(folder, tmp_path / "model.gguf")
    expected, found = load(folder, dtype="bfloat16"), load(path, dtype="bfloat16")
    assert found.quantization_name == "gguf-mxfp4"
    assert packed_bytes(found.decoder) == packed_bytes(expected.decoder)
    for prompt in PROMPTS:
        assert torch.equal(prompt_logits(found, prompt), prompt_logits(expected, prompt))
    stored = Stored(tensors=open_model(path).tensors())
    reckoned = weight_bytes(found.description, torch.bfloat16, stored)
    assert reckoned == weight_bytes(expected.description, torch.bfloat16)


def test_joined_qkv_of_glm_is_the_same(tmp_path: Path) -> None:
    folder = folder_of("glm", tmp_path / "folder")
    path = write_gguf(folder, tmp_path / "model.gguf", has_qkv_joined=True)
    expected, found = load(folder), load(path)
    for prompt in PROMPTS:
        assert torch.equal(prompt_logits(found, prompt), prompt_logits(expected, prompt))


def test_a_bound_of_olmoe_is_followed_where_a_file_says_it(tmp_path: Path) -> None:
    folder = folder_of("olmoe", tmp_path / "folder", clip_qkv=0.7)
    path = write_gguf(folder, tmp_path / "model.gguf", attention__clamp_kqv=0.7)
    expected = prompt_logits(load(folder), PROMPTS[0])
    torch.testing.assert_close(prompt_logits(load(path), PROMPTS[0]), expected)


@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_over_64_steps(model: str, tmp_path: Path) -> None:
    fields = dict(MODELS[model])
    folder = folder_of(model, tmp_path / "folder", **fields)
    oracle = GreedyOracle(folder)
    config = EngineConfig(
        block_size=8, num_blocks=128, dtype="float32", max_model_len=512, max_num_batched_tokens=24
    )
    driver = EngineDriver(load(write_gguf(folder, tmp_path / "model.gguf")), config)
    sampling = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    outputs = driver.generate(PROMPTS, sampling=sampling)
    assert outputs == oracle.all_greedy(PROMPTS, 64, outputs)


@pytest.mark.parametrize("kind", ["F16", "BF16", *BLOCK_FORMATS])
def test_weights_are_what_their_bytes_stand_for(kind: str, tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "folder", **WIDE)
    stored = load(write_gguf(folder, tmp_path / "stored.gguf", kind))
    dense = load(write_gguf(folder, tmp_path / "dense.gguf", kind, dequantised=True))
    for prompt in PROMPTS:
        of_blocks, of_floats = prompt_logits(stored, prompt), prompt_logits(dense, prompt)
        if kind == "MXFP4":  # multiplied as codes: in another order
            assert (of_blocks - of_floats).norm() < 1e-5 * of_floats.norm()
        else:
            assert torch.equal(of_blocks, of_floats)
    assert stored.fingerprint != dense.fingerprint


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_experts_of_few_bits_are_read_one_by_one(kind: str, tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "moe_intermediate_size": 256, "mlp_only_layers": []}
    folder = folder_of("qwen3_moe", tmp_path / "folder", **wide)
    stored = load(write_gguf(folder, tmp_path / "stored.gguf", kind))
    dense = load(write_gguf(folder, tmp_path / "dense.gguf", kind, dequantised=True))
    assert torch.equal(prompt_logits(stored, PROMPTS[0]), prompt_logits(dense, PROMPTS[0]))
