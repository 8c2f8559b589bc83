"""What a model's folder says of sampling."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagoda_gateway.openai.sampling.generation_config import GenerationConfig
from pagoda_runtime.errors import ModelFolderError


def load(folder: Path, **fields: Any) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return GenerationConfig.load(folder)


def test_what_a_published_file_says(tmp_path: Path) -> None:
    config = load(
        tmp_path, do_sample=True, eos_token_id=[1, 2], temperature=0.6, top_k=20.0, top_p=0.95,
        min_p=None, max_new_tokens=2048,
    )  # fmt: skip
    assert config.sampling == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert config.max_new_tokens == 2048


@pytest.mark.parametrize("name", ["folder", "model.gguf"])
def test_without_the_file_it_says_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.gguf").touch()
    assert GenerationConfig.load(tmp_path / name) == GenerationConfig()


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 3), ("top_p", 0), ("top_k", "20"), ("max_new_tokens", 0)]
)
def test_what_no_request_could_say_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(ModelFolderError, match=rf"generation_config\.json: {field} is {value!r}: "):
        load(tmp_path, **{field: value})
