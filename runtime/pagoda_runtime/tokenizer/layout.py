"""Parts of a tokenizer.json that tokenizers of several origins share.

Knows the layout. Knows nothing of the files that vocabularies come from.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

MAX_TOKEN_CHARS = 4096
"""Of a token that merges are made for, which takes time by its square."""
SPACE = "\u2581"
"""What SentencePiece writes for a space."""


def document(added_tokens: list[dict[str, Any]], parts: Mapping[str, Any]) -> str:
    """Return the text of a tokenizer.json.

    Args:
        added_tokens: entries, in the order of their ids.
        parts: `normalizer`, `pre_tokenizer`, `post_processor`, `decoder` and `model`.
    """
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens,
            **parts,
        },
        ensure_ascii=False,
    )


def bpe(vocab: Mapping[str, int], merges: list[tuple[str, str]], **options: Any) -> dict[str, Any]:
    """Return a model of byte pair encoding."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": vocab,
        "merges": merges,
    }


def all_merges(
    tokens: Iterable[str], parts: Container[str], order: Callable[[str], Any]
) -> list[tuple[str, str]]:
    """Return every way to make a token of two, by the order of what is made.

    SentencePiece and tiktoken join the neighbours that make the best token, whichever two these
    are. Of the ways to one token, or to equally good ones, that with the longest first part comes
    first.

    Args:
        tokens: what may be made.
        parts: what it may be made of.
        order: the smaller, the earlier.
    """
    found = []
    for token in tokens:
        for cut in range(len(token) - 1, 0, -1):
            left, right = token[:cut], token[cut:]
            if left in parts and right in parts:
                found.append((order(token), left, right))
    found.sort(key=lambda merge: (merge[0], -len(merge[1])))
    return [(left, right) for _, left, right in found]


def around(ids: Mapping[str, int], bos: str, eos: str) -> dict[str, Any] | None:
    """Return what puts BOS and EOS around a text; None for neither.

    Args:
        ids: of those two at least.
        bos: its text; "": there shall be none.
        eos: alike.
    """
    if not bos and not eos:
        return None

    def piece(token: str) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": token, "type_id": 0}}] if token else []

    def sequence(name: str) -> list[dict[str, Any]]:
        return [*piece(bos), {"Sequence": {"id": name, "type_id": 0}}, *piece(eos)]

    return {
        "type": "TemplateProcessing",
        "single": sequence("A"),
        "pair": [*sequence("A"), *sequence("B")],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in (bos, eos)
            if token
        },
    }


def to_spaces(has_prefix: bool) -> dict[str, Any]:
    """Return the decoder of SentencePiece's tokens.

    Args:
        has_prefix: a space that a text begins with is none of its own.
    """
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    return {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            *strip,
        ],
    }


def from_spaces() -> dict[str, Any]:
    """Return the step that writes spaces as SentencePiece does."""
    return {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
