"""The model's tokenizer, from its folder or file: text to ids, ids to text, each token's bytes.

Uses the `tokenizers` library alone. Knows nothing of requests.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pagoda_formats.gguf_file import is_gguf
from pagoda_gateway.errors import shorten
from pagoda_gateway.text.detokenizer import (
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    Detokenizer,
    KeepingDetokenizer,
    WindowDetokenizer,
)
from pagoda_gateway.text.model_files import naming
from pagoda_gateway.text.panics import reported_panics
from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.grammar import GrammarCompiler
from pagoda_runtime.tokenizer.files import read_object
from pagoda_runtime.tokenizer.gguf import tokenizer_config as gguf_tokenizer_config
from pagoda_runtime.tokenizer.pre_tokenizers import BYTE_CHARS
from pagoda_runtime.tokenizer.text import tokenizer_file, tokenizer_text

FREE_IDS = 1 << 16  # ids without a token that any tokenizer may have, beside one for each token
PROBE_TEXT = "Hello, W\u00f6rld! \u65e5\u672c \U0001f600\n 1 2"
LARGE_IDS = 1024
PIECE_CHARS = 65_536
SPACE = "\u2581"  # as sentencepiece writes it
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPECIAL_NAME = "_token"  # how the names of special tokens end: bos_token, image_token
_MORE_NAMES = ("extra_special_tokens", "model_specific_special_tokens")


class ModelTokenizer:
    """Text <-> token ids of one model, as its reference implementation does it.

    Attributes:
        special_tokens: by their names in tokenizer_config.json.
        normalize: returns the text that tokens are made of, with spaces as they are; None: it is
            the text as it is sent.
    """

    def __init__(self, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
        """Wrap a loaded tokenizer; `config` is tokenizer_config.json."""
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.special_tokens = _special_tokens(config)
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        pieces = [tokenizer.id_to_token(i) or "" for i in range(_size(tokenizer))]
        parts = json.loads(tokenizer.to_str())
        decoder = parts.get("decoder") or {}
        self._is_byte_level = _is_byte_level(decoder)
        falls_back = not self._is_byte_level and "ByteFallback" in _steps(decoder)
        self._single_bytes = {
            i: bytes([int(byte[1], 16)])
            for i, piece in enumerate(pieces if falls_back else ())
            if (byte := _BYTE_TOKEN.fullmatch(piece))
        }
        normalizes = tokenizer.normalizer is not None and "ByteLevel" not in _steps(
            parts["normalizer"]
        )
        self.normalize: Callable[[str], str] | None = self._normalized if normalizes else None
        self._token_bytes = [
            _byte_level_bytes(piece) if self._is_byte_level else _sentencepiece_bytes(piece)
            for piece in pieces
        ]
        self._max_token_chars = max(map(len, self._token_bytes), default=1) or 1

    @classmethod
    def load(cls, folder: Path) -> "ModelTokenizer":
        """Read a tokenizer and its configuration, and try it on a text.

        Args:
            folder: with tokenizer.json, or what it can be made of (see `tokenizer_text`), and
                tokenizer_config.json; or a GGUF file.

        Raises:
            ModelFolderError: one of them is missing or unusable.
        """
        path = tokenizer_file(folder)
        config = read_tokenizer_config(folder)
        with naming(path):
            loaded = Tokenizer.from_str(tokenizer_text(folder))
            _check_ids(path, loaded)
            tokenizer = cls(loaded, config)
            probe = tokenizer.encode(PROBE_TEXT, add_special_tokens=True)
            tokenizer.decode(probe, skip_special_tokens=False)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows (the model's own vocabulary may be padded)."""
        return len(self._token_bytes)

    @property
    def max_token_chars(self) -> int:
        """Characters that one token stands for at most."""
        return self._max_token_chars

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return token ids; `add_special_tokens` adds BOS and the like as the model expects.

        What is added is tokenizer.json's affair alone; like the reference implementation, this
        ignores add_bos_token in tokenizer_config.json beside it.

        Raises:
            InvalidRequestError: the tokenizer cannot encode this text.
        """
        return self.encode_all([text], add_special_tokens=add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of each text; see `encode`.

        Other threads run meanwhile: `encode_batch_fast` lets go of the GIL, which `encode` holds.
        """
        with reported_panics("the model's tokenizer"):
            encoded = self._tokenizer.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
        return [list(encoding.ids) for encoding in encoded]

    def _normalized(self, text: str) -> str:
        """Return the text by pieces: the library lets go of the interpreter between them alone."""
        pieces, start = [], 0
        while len(text) - start > PIECE_CHARS:
            end = start + PIECE_CHARS
            cut = max(text.rfind(space, start, end) for space in (" ", "\n"))
            end = cut + 1 if cut >= 0 else end
            pieces.append(self._normalized_piece(text[start:end]))
            start = end
        return "".join([*pieces, self._normalized_piece(text[start:])])

    def _normalized_piece(self, text: str) -> str:
        with reported_panics("the model's tokenizer"):
            found: str = self._tokenizer.normalizer.normalize_str(text)
        found = found.replace(SPACE, " ")
        return found if text.startswith(" ") else found.removeprefix(" ")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of whole sequences; for streams use `detokenizer`."""
        with reported_panics("the model's tokenizer"):
            if len(token_ids) < LARGE_IDS:
                return str(
                    self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
                )
            # Lets go of the GIL, which `decode` holds; for few tokens that is not worth it.
            (text,) = self._tokenizer.decode_batch(
                [list(token_ids)], skip_special_tokens=skip_special_tokens
            )
            return str(text)

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        kept: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """Return an incremental detokeniser for the output that follows this prompt.

        `skip_special_tokens` leaves special tokens out, but for those in `kept`.
        """
        skipped = self._special_ids - kept if skip_special_tokens else frozenset[int]()
        if self._is_byte_level:
            return ByteLevelDetokenizer(self._token_bytes, skipped)
        detokenizer: Detokenizer
        detokenizer = window = WindowDetokenizer(
            self, prompt_token_ids, skip_special_tokens=skip_special_tokens
        )
        if self._single_bytes:
            detokenizer = ByteFallbackDetokenizer(window, self._single_bytes, skipped)
        if not (kept and skip_special_tokens):
            return detokenizer
        return KeepingDetokenizer(detokenizer, {i: self.token_text(i) for i in kept})

    def mark_ids(self, marks: Iterable[str]) -> dict[str, int]:
        """Return the ids of those texts that are one token each."""
        ids = {mark: self._tokenizer.token_to_id(mark) for mark in marks}
        return {mark: i for mark, i in ids.items() if i is not None}

    def grammar_compiler(self) -> GrammarCompiler:
        """Return what compiles grammars for this tokenizer.

        Raises:
            GrammarError: none can be.
        """
        return GrammarCompiler(self._tokenizer.to_str())

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for; ids that only pad the vocabulary have none."""
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def token_text(self, token_id: int) -> str:
        r"""Return one token as text; ``bytes:\xf0\x9f`` where it is no valid UTF-8 by itself."""
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, or an empty dict if there is none; a GGUF file has its own.

    Special tokens that it does not name are those of special_tokens_map.json, as older models have
    them.

    Raises:
        ModelFolderError: it is no JSON object, or no sound file.
    """
    if is_gguf(folder):
        return gguf_tokenizer_config(folder)
    older = read_object(folder / "special_tokens_map.json")
    config = read_object(folder / "tokenizer_config.json")
    said = {name: value for name, value in config.items() if value is not None}
    return {name: older[name] for name in older if name.endswith(_SPECIAL_NAME)} | said


def _check_ids(path: Path, tokenizer: Tokenizer) -> None:
    """Refuse ids far beyond the number of tokens: every id up to the largest takes memory."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    limit = 2 * len(vocab) + FREE_IDS
    token, largest = max(vocab.items(), key=lambda item: item[1], default=("", -1))
    if largest >= limit:
        raise ModelFolderError(
            f"{path}: model.vocab or added_tokens: {shorten(token)} has the id {largest}, must be "
            f"below {limit} with {len(vocab)} tokens"
        )


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    named = {name: token for name, token in config.items() if name.endswith(_SPECIAL_NAME)}
    for more in map(config.get, _MORE_NAMES):
        named |= more if isinstance(more, dict) else {}  # a list names none
    found = {}
    for name, token in named.items():
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _size(tokenizer: Tokenizer) -> int:
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    return max(vocab.values(), default=-1) + 1


def _is_byte_level(decoder: dict[str, Any]) -> bool:
    if decoder.get("type") == "Sequence":
        steps = decoder.get("decoders", [])
        return len(steps) == 1 and _is_byte_level(steps[0])
    return decoder.get("type") == "ByteLevel"


def _steps(part: dict[str, Any]) -> set[str]:
    """Return the types of a normalizer's or a decoder's steps."""
    steps = part.get("normalizers", part.get("decoders", ()))
    return {part.get("type", "")}.union(*map(_steps, steps))


_BYTES = {char: byte for byte, char in BYTE_CHARS.items()}


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(_BYTES[char] for char in piece)
    except KeyError:  # an added token in plain text
        return piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()
