"""Engines with quantised weights against engines with what the codes stand for, dense."""

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import EngineDriver
from support.tiny_checkpoints import FAMILIES, VOCAB_SIZE, make_tiny_checkpoint
from support.tiny_engine import greedy, make_driver

from pagoda_engine import EngineConfig, InvalidConfigError, LoadedModel, SamplingParams, load_model
from pagoda_engine.models.quantization import QUANTIZATIONS
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library
from pagoda_kernels.native.quantised_weight import quantise

PROMPT = list(range(40, 75))
FORMATS = pytest.mark.parametrize("name", ["int8", "int4"])


def load(folder: Path, name: str = "none", dtype: str = "float32") -> LoadedModel:
    return load_model(folder, EngineConfig(dtype=dtype, max_model_len=128, quantization=name))


def rounded(folder: Path, name: str) -> Path:
    """Give a checkpoint's projections the values of their codes."""
    path, chosen = folder / "model.safetensors", QUANTIZATIONS[name]
    weights = load_file(path)
    embedding = "model.embed_tokens.weight"
    for key, weight in weights.items():
        is_dense = (
            weight.dim() != 2
            or key == embedding
            or key.endswith(("mlp.gate.weight", "moe.gate.weight"))
        )
        bits = chosen.output if key == "lm_head.weight" else chosen.projections
        if not is_dense:
            weights[key] = quantise(weight, bits).dequantised(weight.dtype)
    save_file(weights, path)
    return folder


def logprobs(model: LoadedModel) -> torch.Tensor:
    driver = EngineDriver(model, EngineConfig(num_blocks=16, max_model_len=128))
    params = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=VOCAB_SIZE)
    driver.add("a", PROMPT, sampling=params)
    return torch.tensor([p for _, p in sorted(driver.run()["a"].logprobs[0].top)])


@FORMATS
@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_that_of_its_codes(tmp_path: Path, family: str, name: str) -> None:
    fields = {"tie_word_embeddings": False}  # so that the output's codes can be written down
    folder = make_tiny_checkpoint(tmp_path, family, **fields)
    quantised = load(folder, name)
    plain = load(folder)
    dense = load(rounded(folder, name))
    found, expected = logprobs(quantised), logprobs(dense)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
    assert (found - logprobs(plain)).abs().mean() > 10 * (found - expected).abs().mean()
    tokens = [make_driver(m).generate([PROMPT], sampling=greedy(12))[0] for m in (quantised, dense)]
    assert tokens[0] == tokens[1]


@FORMATS
def test_a_tied_output_is_quantised_and_the_embedding_is_not(tmp_path: Path, name: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3")
    untied = make_tiny_checkpoint(tmp_path / "untied", "qwen3", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    save_file(
        weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()},
        untied / "model.safetensors",
    )
    expected = logprobs(load(rounded(untied, name)))
    torch.testing.assert_close(logprobs(load(folder, name)), expected, rtol=1e-3, atol=2e-3)


@FORMATS
@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_held_dense_it_is_the_same_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    family: str,
    name: str,
    dtype: str,
) -> None:
    # In the checkpoint's bf16 weights are the same in all of them, and so are their codes.
    folder = make_tiny_checkpoint(tmp_path, family, torch_dtype="bfloat16")
    expected = logprobs(load(folder, name))
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    with caplog.at_level(logging.WARNING):
        found = logprobs(load(folder, name, dtype))
    assert caplog.text.count(f"no products with {name} weights for {dtype} on cpu") == 1
    assert (found - expected).abs().mean() < (1e-3 if dtype == "float32" else 0.1)


@pytest.mark.skipif(native_library() is None, reason="this processor has no native operators")
def test_the_start_says_how_weights_are_held(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    with caplog.at_level(logging.INFO):
        load(folder)
        assert "quantised" not in caplog.text
        load(folder, "int4")
    said = "weights are quantised as they are read: int4 (projections 4 bits, output 8 bits)"
    assert said in caplog.text
    assert "held dense" not in caplog.text


def test_the_format_is_part_of_the_identity(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    models = [load(folder, name) for name in ("none", "int8", "int4", "int4")]
    fingerprints = [model.fingerprint for model in models]
    assert len(set(fingerprints)) == 3
    assert fingerprints[2] == fingerprints[3]
    assert all(len(fingerprint) == 16 for fingerprint in fingerprints)
    assert [model.quantization.name for model in models] == ["none", "int8", "int4", "int4"]


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    with pytest.raises(
        InvalidConfigError, match="quantization is 'int3', must be one of none, int8, int4"
    ):
        load(folder, "int3")


@FORMATS
def test_tokens_do_not_depend_on_the_batch(tmp_path: Path, name: str) -> None:
    """In bf16, where a rounding may turn a token: alone, together, in chunks."""
    model = load(make_tiny_checkpoint(tmp_path), name, "bfloat16")
    prompts = [PROMPT[:n] for n in (35, 3, 20, 11, 8, 30, 1, 17)]
    alone = [make_driver(model).generate([p], sampling=greedy(8))[0] for p in prompts]
    fields = {"num_blocks": 100, "max_num_batched_tokens": 9, "max_num_seqs": 8}
    assert make_driver(model, **fields).generate(prompts, sampling=greedy(8)) == alone
