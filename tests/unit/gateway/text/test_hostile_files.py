"""Model folders that are broken or malicious: one line that names the file, and no more memory."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import byte_level_tokenizer, write_model_folder

from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.errors import ModelFolderError


def folder_with(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    write_model_folder(folder, byte_level_tokenizer())
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return folder


def set_vocab(**ids: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["model"]["vocab"].update(ids)


def set_field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({name: value})


def set_model(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["model"].update({name: value})


def refusal_of(load: Callable[[], object]) -> str:
    """Return the text of the only error that loading may end in; empty: it was loaded."""
    try:
        load()
    except ModelFolderError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("bad_id", [70_000, 2**31, 2**32 - 1])
def test_an_id_far_beyond_the_tokens_is_refused_without_taking_memory(
    tmp_path: Path, bad_id: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFolderError, match=rf"tokenizer\.json: .*'zz' has the id {bad_id}"):
        ModelTokenizer.load(folder_with(tmp_path, set_vocab(zz=bad_id)))

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # kB


def test_a_hole_in_the_ids_is_no_fault(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(folder_with(tmp_path, set_vocab(zz=5000)))

    assert tokenizer.vocab_size == 5001


@pytest.mark.parametrize(
    "change",
    [
        set_vocab(zz=-1),
        set_vocab(zz=2**40),
        set_vocab(zz="1"),
        set_field("model", None),
        set_field("model", {"type": "Abacus"}),
        set_field("model", []),
        set_field("added_tokens", [{"id": 3}]),
        set_field("added_tokens", "all"),
        set_field("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}}),
        set_field("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        set_field("post_processor", {"type": "TemplateProcessing", "single": [7]}),
        set_field("decoder", {"type": "Sequence", "decoders": 1}),
        set_model("merges", ["a b c"]),
        set_model("merges", [["q!", "zzz"]]),
        set_model("unk_token", 5),
        set_model("vocab", {}),
        set_model("dropout", 7),
    ],
)
def test_a_broken_tokenizer_is_named_or_works(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    refusal = refusal_of(lambda: ModelTokenizer.load(folder_with(tmp_path, change)))

    assert refusal.startswith(str(tmp_path / "tokenizer.json")) or not refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 5000, "null"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, name: str, text: str) -> None:
    write_model_folder(tmp_path, byte_level_tokenizer())
    (tmp_path / name).write_text(text)

    with pytest.raises(ModelFolderError, match=name):
        ModelTokenizer.load(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    write_model_folder(tmp_path, byte_level_tokenizer())
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}")

    with pytest.raises(ModelFolderError, match=r"tokenizer\.json"):
        ModelTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ a | no_such_filter }}",
        "(" * 5000,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if a %}" * 200 + "{% endif %}" * 200,
        5,
        {"a": 1},
        [{"name": "default"}],
        ["x"],
        [{"name": "default", "template": 7}],
    ],
)
def test_a_broken_template_is_named_or_works(tmp_path: Path, template: Any) -> None:
    write_model_folder(tmp_path, byte_level_tokenizer(), chat_template=template)
    refusal = refusal_of(lambda: ChatTemplate.load(tmp_path, {}))

    assert "tokenizer_config.json: chat_template" in refusal or not refusal
    assert "\n" not in refusal
