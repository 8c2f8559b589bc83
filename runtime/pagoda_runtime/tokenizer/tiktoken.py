"""`tokenizer.json` of a file of tiktoken's: one token and its rank a line, the token in base64.

The file does not say how a text is cut before its bytes are merged, nor which special tokens there
are: that is known of a few models by name. Others are refused.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.files import SAVE_IT
from pagoda_runtime.tokenizer.folder_tokens import AddedToken, FolderTokens
from pagoda_runtime.tokenizer.layout import (
    MAX_TOKEN_CHARS,
    all_merges,
    around,
    bpe,
    document,
)
from pagoda_runtime.tokenizer.pre_tokenizers import (
    BYTE_CHARS,
    CL100K,
    PRE_TOKENIZERS,
    PreTokenizer,
    byte_level,
)

_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,9})")
LLAMA_3_BOS = "<|begin_of_text|>"


def _none(_num_ranks: int) -> dict[str, int]:
    return {}


def _reserved(count: int) -> Callable[[int], dict[str, int]]:
    """Return what names the tokens behind the ranks as Moonshot's code does."""
    return lambda first: {f"<|reserved_token_{i}|>": i for i in range(first, first + count)}


def _qwen(first: int) -> dict[str, int]:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return {name: first + i for i, name in enumerate(names)} | {
        f"<|extra_{i}|>": first + len(names) + i for i in range(205)
    }


@dataclass(frozen=True, slots=True)
class Kind:
    """What one family's own code does with its file.

    Attributes:
        pre: how texts are cut.
        special: which tokens follow so many ranks, where tokenizer_config.json names no other.
        bos: what precedes a text; "": nothing.
    """

    pre: PreTokenizer
    special: Callable[[int], Mapping[str, int]] = _none
    bos: str = ""


_CL100K = {"<|endoftext|>": 100257, "<|endofprompt|>": 100276} | {
    f"<|fim_{name}|>": 100258 + i for i, name in enumerate(("prefix", "middle", "suffix"))
}
_O200K = {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
_BY_FILE = {
    "cl100k_base.tiktoken": Kind(CL100K, lambda _: _CL100K),
    "o200k_base.tiktoken": Kind(PRE_TOKENIZERS["gpt-4o"], lambda _: _O200K),
    "qwen.tiktoken": Kind(PRE_TOKENIZERS["qwen2"], _qwen),
}
_BY_MODULE = {
    "tokenization_kimi": Kind(PRE_TOKENIZERS["kimi-k2"], _reserved(256)),
    "tokenization_moonshot": Kind(PRE_TOKENIZERS["kimi-k2"], _reserved(258)),
    "tokenization_qwen": Kind(PRE_TOKENIZERS["qwen2"], _qwen),
}
_BY_MODEL_TYPE = {
    "kimi_k2": _BY_MODULE["tokenization_kimi"],
    "kimi_linear": _BY_MODULE["tokenization_kimi"],
    "qwen": _BY_MODULE["tokenization_qwen"],
}
_LLAMA_3 = Kind(PRE_TOKENIZERS["llama3"], bos=LLAMA_3_BOS)


def looks_like_ranks(data: bytes) -> bool:
    """Return whether a file is of tiktoken's kind: its first line is."""
    return _LINE.fullmatch(data.partition(b"\n")[0].rstrip()) is not None


def tokenizer_json(path: Path, data: bytes, tokens: FolderTokens) -> str:
    """Return the text of the tokenizer.json that has a file's tokens.

    Args:
        path: the file, for errors and for its name.
        data: its bytes.
        tokens: of its folder.

    Raises:
        ModelFolderError: it is no such file, or nobody can tell how texts are cut.
    """
    kind = _kind(path, tokens)
    pre = kind.pre
    ids = _ranks(path, data)
    merges = all_merges(ids, ids, lambda token: ids[token])
    num_ranks = len(ids)
    added = {
        token_id: AddedToken(text, special=True)
        for text, token_id in kind.special(num_ranks).items()
        if token_id not in tokens.added
    }
    added |= tokens.added
    taken = set(ids.values())
    for token_id, token in sorted(added.items()):
        if token_id in taken or token.content in ids:
            raise ModelFolderError(
                f"{tokens.path}: token {token_id}, {token.content!r}, is one of {path.name}'s or "
                "there twice: an added token must have an id and a text of its own"
            )
        ids[token.content] = token_id
    bos = tokens.special.get("bos_token", kind.bos) if kind.bos else ""
    if bos and bos not in ids:
        raise ModelFolderError(f"{tokens.path}: bos_token is {bos!r}, which has no id")
    return document(
        [added[token_id].entry(token_id) for token_id in sorted(added)],
        {
            "normalizer": {"type": "NFC"} if pre.normalises else None,
            "pre_tokenizer": pre.steps(),
            "post_processor": around(ids, bos, ""),
            "decoder": byte_level(use_regex=True),
            "model": bpe(ids, merges, ignore_merges=True),
        },
    )


def _kind(path: Path, tokens: FolderTokens) -> Kind:
    texts = {token.content for token in tokens.added.values()}
    if kind := _BY_MODULE.get(tokens.module):
        return kind
    if not tokens.module:
        if kind := _BY_MODEL_TYPE.get(tokens.model_type) or _BY_FILE.get(path.name):
            return kind
        if tokens.model_type == "llama" and LLAMA_3_BOS in texts:
            return _LLAMA_3
    known = ", ".join([*_BY_MODEL_TYPE, *_BY_FILE])
    raise ModelFolderError(
        f"{path} does not say how texts are cut, and neither does its model: model_type is "
        f"{tokens.model_type!r}, the code in auto_map {tokens.module!r}; known are {known}, "
        f"{', '.join(_BY_MODULE)}, and Llama 3 where added_tokens_decoder has {LLAMA_3_BOS}. "
        f"{SAVE_IT}"
    )


def _ranks(path: Path, data: bytes) -> dict[str, int]:
    """Return the rank of each token, its bytes written as the characters of ByteLevel."""
    ids: dict[str, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        found = _LINE.fullmatch(line.rstrip())
        try:
            if found is None:
                raise ValueError("it must be base64, a space and a number")
            token = base64.b64decode(found[1], validate=True).decode("latin-1")
        except (ValueError, binascii.Error) as error:
            raise ModelFolderError(f"{path}: line {number}: {error}") from error
        if len(token) > MAX_TOKEN_CHARS:
            raise ModelFolderError(
                f"{path}: line {number}: its token has {len(token)} bytes, must have "
                f"{MAX_TOKEN_CHARS} or fewer"
            )
        token = token.translate(BYTE_CHARS)
        if token in ids:
            raise ModelFolderError(f"{path}: line {number}: its token was there before")
        ids[token] = int(found[2])
    if sorted(ids.values()) != list(range(len(ids))):
        raise ModelFolderError(f"{path}: its ranks must be all numbers below {len(ids)}")
    if missing := [byte for byte, char in BYTE_CHARS.items() if char not in ids]:
        raise ModelFolderError(f"{path}: byte {missing[0]} is no token, as every byte must be")
    return ids
