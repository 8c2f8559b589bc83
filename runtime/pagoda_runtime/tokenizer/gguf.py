"""`tokenizer.json` and `tokenizer_config.json` of a GGUF file, made from its metadata.

    text = tokenizer_json(Path("model.gguf"))

Which of several ways leads from a text to tokens is decided by `tokenizer.ggml.model`: `gpt2` is
BPE on bytes, with the merges in the file; `llama` is SentencePiece's BPE, whose merges follow from
the scores of its tokens.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagoda_formats.errors import FormatError
from pagoda_formats.gguf_file import GgufFile, read_gguf
from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.gguf_vocabulary import BYTE, Vocabulary
from pagoda_runtime.tokenizer.layout import (
    SPACE,
    all_merges,
    bpe,
    document,
    from_spaces,
    to_spaces,
)
from pagoda_runtime.tokenizer.pre_tokenizers import PRE_TOKENIZERS, byte_level


def tokenizer_json(path: Path) -> str:
    """Return the text of the tokenizer.json that a file's model would have.

    Raises:
        ModelFolderError: the file has no tokenizer, or one that cannot be had.
    """
    vocabulary = Vocabulary.of(_opened(path))
    kind = vocabulary.text("model")
    if kind not in _KINDS:
        raise ModelFolderError(
            f"{path}: tokenizer.ggml.model is {kind!r}, must be one of {', '.join(_KINDS)}"
        )
    return document(vocabulary.added_tokens(), _KINDS[kind](vocabulary))


def tokenizer_config(path: Path) -> dict[str, Any]:
    """Return what tokenizer_config.json would say: special tokens, and the chat template.

    Raises:
        ModelFolderError: as `tokenizer_json`.
    """
    file = _opened(path)
    config: dict[str, Any] = dict(Vocabulary.of(file).special_tokens)
    if template := file.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _opened(path: Path) -> GgufFile:
    try:
        return read_gguf(path)
    except FormatError as error:
        raise ModelFolderError(str(error)) from error


def _byte_level_bpe(vocabulary: Vocabulary) -> dict[str, Any]:
    name = vocabulary.text("pre")
    if name not in PRE_TOKENIZERS:
        shown = f"is {name!r}" if name else "is missing"
        raise ModelFolderError(
            f"{vocabulary.path}: tokenizer.ggml.pre {shown}, must be one of "
            f"{', '.join(PRE_TOKENIZERS)}; without it nobody can tell how texts are cut. Convert "
            "the model again"
        )
    pre = PRE_TOKENIZERS[name]
    merges = []
    for merge in vocabulary.strings("merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    return {
        "normalizer": {"type": "NFC"} if pre.normalises else None,
        "pre_tokenizer": pre.steps(),
        "post_processor": vocabulary.post_processor(pre.adds_bos),
        "decoder": byte_level(use_regex=True),
        "model": bpe(vocabulary.ids, merges, ignore_merges=pre.ignores_merges),
    }


def _sentencepiece_bpe(vocabulary: Vocabulary) -> dict[str, Any]:
    has_prefix = vocabulary.flag("add_space_prefix", True)
    prefix = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    unknown = vocabulary.token_of("unknown_token_id") or None
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, from_spaces()]},
        "pre_tokenizer": None,
        "post_processor": vocabulary.post_processor(adds_bos=True),
        "decoder": to_spaces(has_prefix),
        "model": bpe(
            vocabulary.ids,
            _merges_by_score(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in vocabulary.types,
        ),
    }


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return every way to make a token of two, those of the highest score first.

    SentencePiece always joins the neighbours that make the token of the highest score, so that the
    order of scores is an order of merges. Where scores are the same (some converters lose them),
    the order of ids is that of training, too.
    """
    ids = vocabulary.ids
    scores = vocabulary.numbers("scores")
    return all_merges(ids, ids, lambda token: (-scores[ids[token]], ids[token]))


_KINDS: dict[str, Callable[[Vocabulary], dict[str, Any]]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece_bpe,
}
