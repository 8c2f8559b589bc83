"""Which of a folder's files its tokens are taken from."""

from pathlib import Path

import pytest
from support.vocabularies import tiktoken_file, write_folder

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.text import tokenizer_file, tokenizer_text


def test_a_tokenizer_json_is_taken_as_it_is(tmp_path: Path) -> None:
    write_folder(tmp_path, "qwen.tiktoken", tiktoken_file(), "qwen")
    (tmp_path / "tokenizer.json").write_text('{"any": "thing"}')
    assert tokenizer_file(tmp_path) == tmp_path / "tokenizer.json"
    assert tokenizer_text(tmp_path) == '{"any": "thing"}'


def test_several_other_files_are_one_too_many(tmp_path: Path) -> None:
    write_folder(tmp_path, "qwen.tiktoken", tiktoken_file(), "qwen")
    write_folder(tmp_path, "tokenizer.model", tiktoken_file(), "qwen")
    message = "tokenizer.json is missing, and of qwen.tiktoken, tokenizer.model there must be one"
    with pytest.raises(ModelFolderError, match=message):
        tokenizer_file(tmp_path)


def test_what_to_do_without_any(tmp_path: Path) -> None:
    message = r"tokenizer.json is missing, and there is no .*Save a tokenizer.json with"
    with pytest.raises(ModelFolderError, match=message):
        tokenizer_text(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 5000])
def test_broken_files_beside_it_are_named(text: str, tmp_path: Path) -> None:
    write_folder(tmp_path, "qwen.tiktoken", tiktoken_file(), "qwen")
    (tmp_path / "special_tokens_map.json").write_text(text)
    with pytest.raises(ModelFolderError, match=r"special_tokens_map\.json"):
        tokenizer_text(tmp_path)
