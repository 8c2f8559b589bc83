"""Models of text and images, of which the text part is served: their folders."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoder_logits import assert_close, logits_of
from support.family_checkpoints import make_family_checkpoint
from support.oracle import Oracle
from support.random_tokens import random_tokens

from pagoda_engine import CheckpointError, EngineConfig, UnsupportedModelError, load_model
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.registry import read_description
from pagoda_engine.models.rope_scaling import RopeDescription

TOKENS = random_tokens(40)
GEMMA, MISTRAL = "Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration"


def read(folder: Path, **fields: Any) -> DecoderDescription:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return read_description(path)


def rename(folder: Path, names: dict[str, str]) -> None:
    """Give tensors other names, by the beginnings of those that they have."""
    path = folder / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(path).items():
        theirs = next((prefix for prefix in names if name.startswith(prefix)), "")
        renamed[names.get(theirs, "") + name.removeprefix(theirs)] = tensor
    save_file(renamed, path, metadata={"format": "pt"})


def assert_logits_are_close(folder: Path) -> None:
    oracle = Oracle(folder)
    found = logits_of(oracle.model.decoder, [TOKENS], [[30], [10]])
    assert_close(found[0], oracle.logits(TOKENS))


def test_gemma_3_of_4b_as_it_is_published(tmp_path: Path) -> None:
    """What its ``text_config`` leaves out is what transformers takes for it."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    description = read(
        tmp_path,
        architectures=[GEMMA],
        eos_token_id=[1, 106],
        model_type="gemma3",
        text_config=text,
        torch_dtype="bfloat16",
        vision_config={"hidden_size": 1152, "model_type": "siglip_vision_model"},
    )
    assert description.architecture == GEMMA
    assert (description.vocab_size, description.hidden_size) == (262208, 2560)
    assert (description.num_heads, description.num_kv_heads, description.head_dim) == (8, 4, 256)
    assert description.max_position_embeddings == 131072
    assert description.dtype == "bfloat16"
    assert description.tie_word_embeddings
    assert description.sliding_windows[4:7] == (1024, None, 1024)
    assert description.layer_ropes[5] == RopeDescription(theta=1e6, rope_type="linear", factor=8.0)
    assert description.layer_ropes[4] == RopeDescription(theta=1e4)


@pytest.mark.parametrize("family", ["gemma3_with_images", "mistral3_with_images"])
@pytest.mark.parametrize("whole", ["", "model."], ids=["as-saved", "as-in-memory"])
def test_tensors_have_the_names_of_every_release(tmp_path: Path, family: str, whole: str) -> None:
    folder = make_family_checkpoint(tmp_path, family)
    if whole:
        parts = ("vision_tower.", "multi_modal_projector.")
        names = {part: whole + part for part in parts}
        names["language_model.model."] = "model.language_model."
        names["language_model.lm_head."] = "lm_head."
        rename(folder, names)
    assert_logits_are_close(folder)


def test_the_log_names_what_is_left_out_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_family_checkpoint(tmp_path, "gemma3_with_images")
    weights = load_file(folder / "model.safetensors").items()
    left_out = [tensor for name, tensor in weights if not name.startswith("language_model.")]
    with caplog.at_level(logging.INFO, "pagoda_engine.models"):
        load_model(folder, EngineConfig(dtype="float32"))
    said = [line for line in caplog.messages if "left out" in line]
    assert len(said) == 1
    assert said[0].startswith("the vision part is left out: images are not read here")
    assert f"; {len(left_out)} tensors, " in said[0]


def test_other_tensors_beside_the_text_part_are_refused(tmp_path: Path) -> None:
    folder = make_family_checkpoint(tmp_path, "gemma3_with_images")
    path = folder / "model.safetensors"
    save_file({**load_file(path), "audio_tower.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"1 tensors have no use: audio_tower\.weight"):
        load_model(folder, EngineConfig())


@pytest.mark.parametrize("says", [True, None], ids=["said", "by-default"])
def test_an_output_projection_that_is_there_is_not_tied(tmp_path: Path, says: bool | None) -> None:
    """As Mistral Small 3.1 is published: transformers takes it for tied until it sees the files."""
    folder = make_family_checkpoint(tmp_path, "mistral3_with_images")
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), "tie_word_embeddings": says}
    if says is None:
        del fields["tie_word_embeddings"]
    path.write_text(json.dumps(fields))
    assert_logits_are_close(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["language_model.lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert_logits_are_close(folder)


def test_outputs_end_with_the_text_parts_token(tmp_path: Path) -> None:
    folder = make_family_checkpoint(tmp_path, "gemma3_with_images", eos_token_id=77)
    (folder / "generation_config.json").unlink()
    assert load_model(folder, EngineConfig()).eos_token_ids == {77}


def test_random_weights_need_no_files(tmp_path: Path) -> None:
    folder = make_family_checkpoint(tmp_path, "mistral3_with_images")
    (folder / "model.safetensors").unlink()
    load_model(folder, EngineConfig(load_format="dummy"))


def test_text_parts_of_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"text_config\.model_type 'ministral3'"):
        read(tmp_path, architectures=[MISTRAL], text_config={"model_type": "ministral3"})


@pytest.mark.parametrize("architecture", [GEMMA, MISTRAL])
def test_a_configuration_without_a_text_part_is_refused(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(CheckpointError, match="text_config is missing"):
        read(tmp_path, architectures=[architecture])
