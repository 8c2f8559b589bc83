"""KV in one byte: where scales come from, and what it costs in accuracy."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import EngineDriver
from support.family_checkpoints import make_family_checkpoint
from support.tiny_checkpoints import VOCAB_SIZE, make_tiny_checkpoint
from support.tiny_engine import greedy

from pagoda_engine import (
    CheckpointError,
    EngineConfig,
    InvalidConfigError,
    LoadedModel,
    SamplingParams,
    load_model,
)
from pagoda_engine.models.kv.dtype import resolve_kv_dtype
from pagoda_engine.models.kv.measure import HEADROOM, STEPS_PER_DOUBLING
from pagoda_engine.models.kv.scales import NAMES
from pagoda_kernels.native import packed_linear
from pagoda_kernels.one_byte_dtypes import LARGEST

PROMPT = list(range(40, 75))
ONE_BYTE = pytest.mark.parametrize("kv", ["fp8", "int8"])
NUM_LAYERS, NUM_KV_HEADS = 3, 2


def load(folder: Path, kv: str = "auto", dtype: str = "float32") -> LoadedModel:
    return load_model(folder, EngineConfig(dtype=dtype, max_model_len=128, kv_cache_dtype=kv))


def with_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path)
    return folder


def scales_of(model: LoadedModel) -> list[tuple[list[float], list[float]]]:
    return [
        (layer.attention.kv_scales.k.tolist(), layer.attention.kv_scales.v.tolist())
        for layer in model.decoder.layers
    ]


def prompt_kv(model: LoadedModel) -> torch.Tensor:
    """Codes of PROMPT, ``[K and V, layers, T, HK, D]``, as floats."""
    driver = EngineDriver(model, EngineConfig(num_blocks=16, max_model_len=128))
    driver.add("a", PROMPT, sampling=greedy(1))
    driver.run()
    kept = driver.engine.kv_cache.tensor.float().flatten(2, 3)
    ids = torch.arange(len(PROMPT) + 1)  # blocks are handed out in order
    return kept[:, :, ids[: len(PROMPT)]]


def logprobs(model: LoadedModel) -> torch.Tensor:
    driver = EngineDriver(model, EngineConfig(num_blocks=16, max_model_len=128))
    params = SamplingParams(max_tokens=4, temperature=0.0, num_logprobs=VOCAB_SIZE)
    driver.add("a", PROMPT, sampling=params)
    return torch.tensor([p for _, p in sorted(driver.run()["a"].logprobs[0].top)])


@ONE_BYTE
@pytest.mark.parametrize("names", NAMES)
def test_scales_are_the_checkpoints(tmp_path: Path, names: tuple[str, str], kv: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    plain = prompt_kv(load(folder))
    stored = {
        f"model.layers.{i}.{name}": torch.tensor(0.01 * (1 + i + plane))
        for i in range(NUM_LAYERS)
        for plane, name in enumerate(dict.fromkeys(names))
    }
    model = load(with_tensors(folder, stored), kv)
    ratio = 448 / LARGEST[model.kv_dtype]
    is_joint = len(set(names)) == 1
    for i, (k, v) in enumerate(scales_of(model)):
        assert k == pytest.approx([0.01 * (1 + i) * ratio] * NUM_KV_HEADS)
        assert v == pytest.approx([0.01 * (2 + i - is_joint) * ratio] * NUM_KV_HEADS)
    codes = prompt_kv(model)
    for i, (k, v) in enumerate(scales_of(model)):
        for plane, scale in enumerate((k, v)):
            widened = codes[plane, i] * torch.tensor(scale)[:, None]
            limit = torch.tensor(scale)[:, None] * LARGEST[model.kv_dtype]
            if i == 0:  # later layers read what the first one rounded
                error = widened - plain[plane, i].clamp(-limit, limit)
                assert error.abs().max() <= 0.07 * plain[plane, i].abs().max()
    assert load(folder).kv_scales == ""  # nobody asks for them, and they are in nobody's way


def test_a_checkpoint_may_have_a_scale_for_each_head(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    stored = {
        f"model.layers.{i}.{name}": torch.tensor([0.5, 2.0])
        for i in range(NUM_LAYERS)
        for name in NAMES[0]
    }
    assert scales_of(load(with_tensors(folder, stored), "fp8"))[1] == ([0.5, 2.0], [0.5, 2.0])


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(0.0), r"k_scale is \[0\.0\], must be finite and above 0"),
        (torch.tensor(float("inf")), "must be finite and above 0"),
        (torch.ones(3), r"k_scale is \[3\], must be \[\], \[1\] or \[2\]"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    tmp_path: Path, scale: torch.Tensor, message: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    stored = {"model.layers.0.self_attn.k_scale": scale}
    with pytest.raises(CheckpointError, match=message):
        load(with_tensors(folder, stored), "fp8")


def test_without_scales_int8_is_measured_and_fp8_is_not(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    assert scales_of(load(folder, "fp8")) == [([1.0] * 2, [1.0] * 2)] * NUM_LAYERS
    model = load(folder, "int8")
    seen = prompt_kv(load(folder)).abs().amax((2, 4))
    for i, (k, v) in enumerate(scales_of(model)):
        for plane, scales in enumerate((k, v)):
            for scale, largest in zip(scales, seen[plane, i].tolist(), strict=True):
                # PROMPT's tokens are others, but the same model's.
                assert 0.7 * largest < scale * 127 < 2.5 * HEADROOM * largest
                steps = torch.tensor(scale).double().log2() * STEPS_PER_DOUBLING
                assert abs(steps - steps.round()) < 1e-5


@ONE_BYTE
@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral", "gemma2", "gpt_oss", "bloom"])
def test_logits_are_near_those_of_plain_kv(tmp_path: Path, family: str, kv: str) -> None:
    """By the native forward and by torch's operators: with windows, soft caps, sinks and ALiBi."""
    is_tiny = family in ("llama", "qwen2", "mixtral")
    make = make_tiny_checkpoint if is_tiny else make_family_checkpoint
    folder = make(tmp_path / family, family)
    plain, coded = logprobs(load(folder)), logprobs(load(folder, kv))
    error = (coded - plain).norm() / (plain - plain.mean()).norm()
    assert 1e-4 < error < 0.3


@ONE_BYTE
def test_heads_of_two_sizes_are_cached_in_one_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str
) -> None:
    """The same by the native forward as by torch's operators; how near depends on the scores."""
    folder = make_family_checkpoint(tmp_path, "gemma4")
    native = load(folder, kv)
    found, plain = logprobs(native), logprobs(load(folder))
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    by_torch = load(folder, kv)
    assert not by_torch.decoder.is_native
    assert native.kv_scales == by_torch.kv_scales
    torch.testing.assert_close(found, logprobs(by_torch), rtol=1e-3, atol=1e-3)
    assert (found - plain).norm() > 1e-4 * plain.norm()


def test_the_identity_tells_dtypes_and_scales_apart(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    names = [load(folder, kv).kv_scales for kv in ("auto", "fp8", "int8")]
    stored = {f"model.layers.{i}.{name}": torch.tensor(0.5) for i in range(3) for name in NAMES[0]}
    names.append(load(with_tensors(folder, stored), "fp8").kv_scales)
    assert len(set(names)) == 4
    engines = [
        EngineDriver(load(folder, kv), EngineConfig(num_blocks=4)).engine for kv in ("auto", "fp8")
    ]
    assert engines[0].layout == "kv2-L3-HK2-D16-float32-bs16"
    assert engines[1].layout == f"kv2-L3-HK2-D16-float8_e4m3fn-bs16-s{names[3]}"
    assert engines[0].kv_cache.block_bytes == 4 * engines[1].kv_cache.block_bytes


def test_latents_and_unknown_names_are_refused(tmp_path: Path) -> None:
    folder = make_family_checkpoint(tmp_path, "deepseek_v2")
    with pytest.raises(InvalidConfigError, match="latents are not cached in one byte"):
        load(folder, "fp8")
    description = load(folder).description
    assert json.loads((folder / "config.json").read_text())["kv_lora_rank"]
    with pytest.raises(InvalidConfigError, match="one of auto, fp8, int8"):
        resolve_kv_dtype("fp4", description, torch.float32)
