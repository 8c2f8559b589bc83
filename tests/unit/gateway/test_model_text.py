"""The text side of several models, read at the start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import sentencepiece_tokenizer, write_model_folder

from pagoda_gateway.model_text import ModelText, load_texts
from pagoda_gateway.text.grammar_checker import GrammarThreads
from pagoda_runtime.errors import ModelFolderError


@pytest.fixture
def threads() -> Iterator[GrammarThreads]:
    threads = GrammarThreads()
    yield threads
    threads.close()


async def load(
    name: str, folder: Path, further: dict[str, str], threads: GrammarThreads, **options: Any
) -> dict[str, ModelText]:
    options = {"tool_format": "auto", "has_defaults": True, **options}
    return await load_texts(name, folder, further=further, threads=threads, **options)


async def test_each_model_has_its_own_files_and_all_share_the_places(
    model_folder: Path, tmp_path: Path, threads: GrammarThreads
) -> None:
    other = write_model_folder(tmp_path / "other", sentencepiece_tokenizer(), chat_template=None)
    further = {"other": str(other)}
    texts = await load("tiny", model_folder, further, threads)
    assert list(texts) == ["tiny", "other"]
    assert [text.prompts.tokenizer.vocab_size for text in texts.values()] == [267, 273]
    assert texts["tiny"].prompts._large is texts["other"].prompts._large


async def test_every_model_whose_files_are_unusable_is_said(
    model_folder: Path, tmp_path: Path, threads: GrammarThreads
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    further = {
        "bare": str(bare),
        "gone": str(tmp_path / "gone"),
        "good": str(model_folder),
        "own": str(model_folder),
    }
    with pytest.raises(ModelFolderError) as raised:
        await load("own", bare, further, threads)
    problems = str(raised.value).split("; ")
    assert problems == [
        "model 'own': " + _missing(bare),
        "model 'bare': " + _missing(bare),
        f"model 'gone': PAGODA_GATEWAY_MODELS['gone']='{tmp_path / 'gone'}': there is no such "
        "folder or file",
        "model 'own': PAGODA_GATEWAY_MODELS['own'] has the name of PAGODA_MODEL, must have another",
    ]


def _missing(folder: Path) -> str:
    return (
        f"{folder / 'tokenizer.json'} is missing, and there is no tokenizer.model (of "
        "sentencepiece), tiktoken.model or *.tiktoken to make it of. Save a tokenizer.json with "
        "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )
