import logging
from pathlib import Path

import pytest
import torch
from support.gguf_files import write_gguf
from support.prompt_logits import prompt_logits
from support.tiny_checkpoints import FAMILIES, make_tiny_checkpoint

from pagoda_engine import CheckpointError, EngineConfig, InvalidConfigError, LoadedModel, load_model

PROMPT = list(range(40, 75))


def load(folder: Path, load_format: str = "dummy", **options: str) -> LoadedModel:
    return load_model(
        folder,
        EngineConfig(max_model_len=128, load_format=load_format, **{"dtype": "float32", **options}),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_alone_is_a_model(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_tiny_checkpoint(tmp_path, family)
    real = load(folder, "auto")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: is missing"):
        load(folder, "auto")
    assert "load_format" not in caplog.text
    with caplog.at_level(logging.WARNING):
        model = load(folder)
    assert caplog.text.count("load_format is dummy: weights are random, outputs mean nothing") == 1
    logits = prompt_logits(model, PROMPT)
    assert logits.isfinite().all()
    assert logits.std(0).min() > 0, "every position has its own"
    # Another worker, started alone, must take its KV.
    assert torch.equal(prompt_logits(load(folder), PROMPT), logits)
    assert load(folder).fingerprint == model.fingerprint
    assert model.fingerprint != real.fingerprint


def test_it_can_be_quantised(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    model = load(folder, quantization="int8")
    assert model.fingerprint != load(folder).fingerprint
    assert model.quantization.name == "int8"


def test_other_formats_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    with pytest.raises(
        InvalidConfigError, match="load_format is 'random', must be one of auto, dummy"
    ):
        load(folder, "random")
    with pytest.raises(InvalidConfigError, match="load_format is 'dummy', must be auto for a GGUF"):
        load(write_gguf(folder, tmp_path / "model.gguf"))
