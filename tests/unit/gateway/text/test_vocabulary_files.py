"""Folders without a tokenizer.json: streams, templates and grammars are as with one."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import TEMPLATE
from support.vocabularies import (
    added_tokens,
    seeded_texts,
    sentencepiece_model,
    tiktoken_file,
    write_folder,
)

from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer, read_tokenizer_config
from pagoda_runtime.errors import ModelFolderError
from pagoda_worker.grammars import Grammars

KIMI: dict[str, Any] = {
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "added_tokens_decoder": added_tokens(begin=1500, end=1501, user=1502),
    "bos_token": "<|begin|>",
    "eos_token": "<|end|>",
}
FOLDERS = ("llama", "gemma", "unigram", "kimi")


def folder_of(name: str, path: Path) -> Path:
    if name == "kimi":
        config = {**KIMI, "chat_template": TEMPLATE}
        return write_folder(path, "tiktoken.model", tiktoken_file(), "kimi_k2", **config)
    model = sentencepiece_model(
        "unigram" if name == "unigram" else "bpe",
        byte_fallback=True,
        add_dummy_prefix=name != "gemma",
    )
    tokenizer = "GemmaTokenizer" if name == "gemma" else "LlamaTokenizer"
    config = {"tokenizer_class": tokenizer, "chat_template": TEMPLATE}
    folder = write_folder(path, "tokenizer.model", model, "llama", **config)
    special = json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    (folder / "special_tokens_map.json").write_text(special)
    return folder


def written(name: str, text: str) -> str:
    """Return what comes back of a text: sentencepiece's mark is a space to it."""
    return text if name == "kimi" else text.replace("\u2581", " ")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_stream_is_the_whole_text(name: str, tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(folder_of(name, tmp_path))
    prompt = tokenizer.encode("Hi", add_special_tokens=True)
    before = tokenizer.decode(prompt, skip_special_tokens=False)
    for text in seeded_texts(150):
        ids = tokenizer.encode(text, add_special_tokens=False)
        stream = tokenizer.detokenizer(prompt, skip_special_tokens=False)
        said = "".join(stream.push(i) for i in ids) + stream.flush()
        assert before + said == tokenizer.decode([*prompt, *ids], skip_special_tokens=False)
        assert said.endswith(written(name, text))


@pytest.mark.parametrize("name", FOLDERS)
def test_bytes_of_tokens_make_the_text(name: str, tmp_path: Path) -> None:
    tokenizer = ModelTokenizer.load(folder_of(name, tmp_path))
    for text in seeded_texts(50):
        ids = tokenizer.encode(f"x{text}", add_special_tokens=False)
        raw = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert raw.removeprefix(" ") == f"x{text}".replace(
            "\u2581", " " if name != "kimi" else "\u2581"
        )


@pytest.mark.parametrize("name", FOLDERS)
def test_a_template_writes_special_tokens(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    tokenizer = ModelTokenizer.load(folder)
    template = ChatTemplate.load(folder, tokenizer.special_tokens)
    assert template is not None
    text = template.render([{"role": "user", "content": "the"}], add_generation_prompt=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    bos, eos = (tokenizer.mark_ids([mark])[mark] for mark in (
        tokenizer.special_tokens["bos_token"], tokenizer.special_tokens["eos_token"]
    ))  # fmt: skip
    assert (ids[0], ids[-1]) == (bos, eos)
    assert "<|user|>the" in tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_worker_follows_grammars(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(name, tmp_path)
    tokenizer = ModelTokenizer.load(folder)
    Grammars.load(folder, vocab_size=tokenizer.vocab_size, eos_token_ids=[2])
    assert not caplog.records
    compiled = tokenizer.grammar_compiler().compile(
        json.dumps({"grammars": [{"json_schema": {"const": {"a": "caf\u00e9"}}}]})
    )
    matcher = compiled.matcher()
    for token_id in tokenizer.encode('{"a": "caf\u00e9"}', add_special_tokens=False):
        if tokenizer.token_bytes(token_id) == b" ":
            continue  # the prefix, which a model does not say
        assert not matcher.is_stopped()
        if not matcher.consume_token(token_id):
            raise AssertionError(tokenizer.token_text(token_id))


def test_the_file_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, "tokenizer.model", b"nonsense", tokenizer_class="LlamaTokenizer")
    with pytest.raises(ModelFolderError, match=r"tokenizer\.model is neither a sentencepiece"):
        ModelTokenizer.load(tmp_path)


def test_a_token_that_is_null_is_the_older_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "eos_token": "<e>"}')
    older = {"bos_token": "<b>", "eos_token": "<other>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    assert read_tokenizer_config(tmp_path) == {"bos_token": "<b>", "eos_token": "<e>"}
