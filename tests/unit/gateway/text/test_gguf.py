"""A GGUF file's text side is that of the folder it was made of."""

from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.gguf_bytes import STRING, field, head, text, written
from support.gguf_files import write_gguf

from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.errors import ModelFolderError
from pagoda_worker.grammars import Grammars

TEXTS = ["To be, or not to be:\n that is <|end|>", " caf\u00e9 \U0001f600 1234", ""]
CHAT = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(DEMO_MODEL, tmp_path_factory.mktemp("gguf") / "demo.gguf", "F16")


def test_tokens_and_texts(path: Path) -> None:
    found, original = ModelTokenizer.load(path), ModelTokenizer.load(DEMO_MODEL)
    assert found.vocab_size == original.vocab_size
    for adds in (True, False):
        ids = found.encode_all(TEXTS, add_special_tokens=adds)
        assert ids == original.encode_all(TEXTS, add_special_tokens=adds)
    for sequence in ids:
        for skips in (True, False):
            assert found.decode(sequence, skip_special_tokens=skips) == original.decode(
                sequence, skip_special_tokens=skips
            )
    assert [found.token_bytes(i) for i in range(found.vocab_size)] == [
        original.token_bytes(i) for i in range(original.vocab_size)
    ]


def test_chat_template(path: Path) -> None:
    tokens = ModelTokenizer.load(path).special_tokens
    assert tokens["bos_token"] == "<|bos|>"
    found = ChatTemplate.load(path, tokens)
    original = ChatTemplate.load(DEMO_MODEL, ModelTokenizer.load(DEMO_MODEL).special_tokens)
    assert found is not None
    assert original is not None
    assert found.render(CHAT) == original.render(CHAT)


def test_grammars_of_a_worker(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Grammars.load(path, vocab_size=2048, eos_token_ids=[1])
    assert not caplog.records
    Grammars.load(path.with_name("missing.gguf"), vocab_size=2048, eos_token_ids=[1])
    assert "no grammars" in caplog.text


def test_a_file_without_a_template(tmp_path: Path) -> None:
    file = written(tmp_path, head([field("tokenizer.ggml.model", STRING, text("gpt2"))]))
    with pytest.raises(ModelFolderError, match=r"tokenizer.ggml.tokens is missing"):
        ModelTokenizer.load(file)


def test_a_file_that_is_none_ends_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"model.gguf: is no GGUF file"):
        ModelTokenizer.load(written(tmp_path, b"nonsense"))
