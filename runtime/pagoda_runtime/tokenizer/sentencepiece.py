"""`tokenizer.json` of a sentencepiece model (`tokenizer.model`), or one line that says why not.

What a model says is written so that ids are sentencepiece's; what a tokenizer.json cannot say, or
says only nearly, is refused. Control pieces in a text are those tokens, as everywhere but in
sentencepiece itself: chat templates write them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.files import SAVE_IT
from pagoda_runtime.tokenizer.folder_tokens import AddedToken, FolderTokens
from pagoda_runtime.tokenizer.layout import (
    MAX_TOKEN_CHARS,
    SPACE,
    all_merges,
    around,
    bpe,
    document,
    from_spaces,
    to_spaces,
)
from pagoda_runtime.tokenizer.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencepieceModel,
    read_model,
)

_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
_MODEL_TYPES = {
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
}
"""Whose BOS, EOS and prefixes are known: they are the class's, not the file's."""


def tokenizer_json(path: Path, data: bytes, tokens: FolderTokens) -> str:
    """Return the text of the tokenizer.json that has a model's tokens.

    Args:
        path: the model, for errors.
        data: its bytes.
        tokens: of its folder.

    Raises:
        ModelFolderError: it is no such model, or one whose tokens cannot be had exactly.
    """
    model = read_model(path, data)
    return _Conversion(path, model, tokens).text()


class _Conversion:
    """One model's, with what its folder says of it; checked when it is made."""

    def __init__(self, path: Path, model: SentencepieceModel, tokens: FolderTokens) -> None:
        self._path = path
        self._model = model
        self._tokens = tokens
        self._is_gemma = self._class() == "GemmaTokenizer"
        self._pieces = self._named_pieces()
        self._ids = self._all_ids()
        self._check_normalisation()
        self._check_pieces()

    def text(self) -> str:
        """Return the tokenizer.json."""
        has_prefix = self._has_prefix()
        # Before transformers 4.31 every stretch between two special tokens had a prefix.
        always = self._is_gemma or self._tokens.flag("legacy") is not False
        added = self._added_tokens()
        first = {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": False,
        }
        kinds = {BPE: self._bpe, UNIGRAM: self._unigram}
        return document(
            [added[token_id].entry(token_id) for token_id in sorted(added)],
            {
                "normalizer": self._normaliser(prepends=has_prefix and always, added=added),
                "pre_tokenizer": first if has_prefix and not always else None,
                "post_processor": self._around(),
                "decoder": to_spaces(has_prefix or self._model.strips_spaces),
                "model": kinds[self._model.kind](),
            },
        )

    def _class(self) -> str:
        tokens = self._tokens
        name = tokens.tokenizer_class or _MODEL_TYPES.get(tokens.model_type, "")
        if name in _CLASSES:
            return name
        shown = (
            f"{tokens.path}: tokenizer_class is {name!r}"
            if name
            else f"{tokens.path} has no tokenizer_class, and model_type is {tokens.model_type!r}"
        )
        raise ModelFolderError(
            f"{shown}: how it uses {self._path.name} is known of {', '.join(_CLASSES)} alone. "
            f"{SAVE_IT}"
        )

    def _refused(self, reason: str) -> ModelFolderError:
        return ModelFolderError(f"{self._path}: {reason}. {SAVE_IT}")

    def _named_pieces(self) -> list[Piece]:
        """Return the pieces as the folder calls them: reserved ones may have got a name."""
        pieces = list(self._model.pieces)
        for token_id, token in self._tokens.added.items():
            if token_id >= len(pieces) or pieces[token_id].text == token.content:
                continue
            kind = pieces[token_id].type
            if kind not in (CONTROL, USER_DEFINED, UNKNOWN, UNUSED):
                raise ModelFolderError(
                    f"{self._tokens.path}: token {token_id} is {token.content!r}, and in "
                    f"{self._path.name} {pieces[token_id].text!r}: they must be the same"
                )
            kind = UNKNOWN if kind == UNKNOWN else CONTROL
            pieces[token_id] = Piece(token.content, pieces[token_id].score, kind)
        return pieces

    def _all_ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        further = {
            token_id: token.content
            for token_id, token in self._tokens.added.items()
            if token_id >= len(self._pieces)
        }
        named = [*enumerate(piece.text for piece in self._pieces), *sorted(further.items())]
        for token_id, text in named:
            if not text:
                raise self._refused(f"token {token_id} has no text")
            if text in ids:
                raise self._refused(f"tokens {ids[text]} and {token_id} are both {text!r}")
            ids[text] = token_id
        return ids

    def _check_normalisation(self) -> None:
        model = self._model
        if model.kind not in (UNIGRAM, BPE):
            raise self._refused("it is neither of the kind unigram nor bpe")
        if not model.marks_spaces or model.denormalises or (model.has_suffix and model.adds_prefix):
            raise self._refused(
                "it leaves spaces as they are, adds them behind texts, or changes decoded texts"
            )
        if model.charsmap:
            # `Precompiled` of the tokenizers library would do it, but loses marks that follow a
            # character which it changes.
            raise self._refused(
                f"it normalises texts by {model.normalisation or 'rules of its own'}, which no "
                "tokenizer.json says exactly"
            )

    def _check_pieces(self) -> None:
        if self._of_type(UNUSED):
            raise self._refused(f"piece {self._of_type(UNUSED)[0].text!r} is of the type unused")
        if spaced := [p for p in self._of_type(USER_DEFINED) if " " in p.text]:
            # sentencepiece never finds it: a text's spaces are marks by then. `tokenizers` marks
            # those of its tokens, too, and finds it.
            raise self._refused(f"a user defined the piece {spaced[0].text!r}, with a space in it")
        if longest := [p for p in self._pieces if len(p.text) > MAX_TOKEN_CHARS]:
            size = len(longest[0].text)
            raise self._refused(
                f"a piece has {size} characters, must have {MAX_TOKEN_CHARS} at most"
            )
        if len(self._of_type(UNKNOWN)) != 1:
            raise self._refused("it must have one piece of the type unknown")
        codes = {piece.text for piece in self._of_type(BYTE)}
        if codes and codes != {f"<0x{byte:02X}>" for byte in range(256)}:
            raise self._refused(f"it has {len(codes)} pieces of the type byte, must have 256")

    def _of_type(self, kind: int) -> list[Piece]:
        return [piece for piece in self._pieces if piece.type == kind]

    def _has_prefix(self) -> bool:
        has_prefix = self._model.adds_prefix
        asked = self._tokens.flag("add_prefix_space")
        if self._is_gemma or asked is None or asked == has_prefix:
            return has_prefix
        raise ModelFolderError(
            f"{self._tokens.path}: add_prefix_space is {asked}, and add_dummy_prefix of "
            f"{self._path.name} is {has_prefix}: they must be the same. {SAVE_IT}"
        )

    def _added_tokens(self) -> dict[int, AddedToken]:
        found = {
            token_id: AddedToken(
                piece.text,
                special=piece.type != USER_DEFINED,
                # In a text as it is normalised, as sentencepiece looks for them.
                normalized=piece.type == USER_DEFINED,
            )
            for token_id, piece in enumerate(self._pieces)
            if piece.type in (CONTROL, USER_DEFINED, UNKNOWN)
        }
        for token_id, token in self._tokens.added.items():
            known = found.get(token_id)
            if known is None or not known.normalized or token.lstrip or token.rstrip:
                found[token_id] = token
            else:
                found[token_id] = AddedToken(token.content, token.special, normalized=True)
        for text in (*self._tokens.special.values(), *self._tokens.further_special):
            if text in self._ids:
                found.setdefault(self._ids[text], AddedToken(text, special=True))
        return found

    def _normaliser(self, prepends: bool, added: Mapping[int, AddedToken]) -> dict[str, Any]:
        steps: list[dict[str, Any]] = []
        if self._model.strips_spaces:
            steps += [_replaced(rf"\A +|[ {SPACE}]+\z", ""), _replaced(" {2,}", " ")]
        sought = [re.escape(token.content) for token in added.values() if token.normalized]
        if prepends and sought:
            # The library normalises these tokens, too, before it looks for them: a prefix would
            # hide them.
            alone = "|".join(sought)
            steps.append(_replaced(rf"\A(?!(?:{alone})\z)(?=[\s\S])", SPACE))
        elif prepends:
            steps.append({"type": "Prepend", "prepend": SPACE})
        return {"type": "Sequence", "normalizers": [*steps, from_spaces()]}

    def _around(self) -> dict[str, Any] | None:
        pieces, special = self._pieces, self._tokens.special
        texts = []
        defaults = (("bos", self._model.bos_id, True), ("eos", self._model.eos_id, False))
        for name, piece_id, is_default in defaults:
            asked = self._tokens.flag(f"add_{name}_token")
            text = special.get(f"{name}_token", "")
            if not text and 0 <= piece_id < len(pieces):
                text = pieces[piece_id].text
            wanted = is_default if asked is None else asked
            if wanted and (text not in self._ids or not text):
                raise ModelFolderError(
                    f"{self._tokens.path}: {name}_token is {text!r}, which has no id"
                )
            texts.append(text if wanted else "")
        return around(self._ids, *texts)

    def _bpe(self) -> dict[str, Any]:
        ids = dict(self._ids)
        normal = {piece.text: piece.score for piece in self._of_type(NORMAL)}
        missing = self._missing_chars()
        for char in missing:
            code = f"<0x{ord(char):02X}>"
            if not char.isascii() or code not in ids:
                raise self._refused(f"there are pieces with {char!r}, and it is none itself")
            # As Gemma's tab: a byte's token is its character's, which merges need by name.
            ids[char] = ids.pop(code)
        made = [text for text in normal if len(text) > 1]
        merges = all_merges(made, {*normal, *missing}, lambda text: -normal[text])
        self._check_ties({left + right for left, right in merges}, normal)
        return bpe(
            ids,
            merges,
            unk_token=self._of_type(UNKNOWN)[0].text,
            fuse_unk=True,
            byte_fallback=bool(self._of_type(BYTE)),
        )

    def _check_ties(self, made: set[str], scores: Mapping[str, float]) -> None:
        """Refuse equal scores: of such pieces the one that stands first is made first.

        Runs of one character, as Llama 2 has of spaces, grow from the left either way.
        """
        seen: dict[float, str] = {}
        for text in sorted(made):
            other = seen.setdefault(scores[text], text)
            if other != text and {*other, *text} != {text[0]}:
                raise self._refused(
                    f"pieces {other!r} and {text!r} have the same score, {scores[text]:g}, and an "
                    "order of merges cannot say which of them is made"
                )

    def _unigram(self) -> dict[str, Any]:
        missing = self._missing_chars()
        bytes_ = self._of_type(BYTE)
        if bytes_:
            missing += sorted(set("<0x123456789ABCDEF>") - self._ids.keys())
        if missing:
            raise self._refused(f"there are pieces with {missing[0]!r}, and it is none itself")
        # A text of "<0x41>" is none of the byte's: every other way must be better.
        least = min((piece.score for piece in self._of_type(NORMAL)), default=0.0) * 16 - 1e3
        scores = [
            [piece.text, piece.score if piece.type in (NORMAL, USER_DEFINED) else least]
            for piece in self._pieces
        ]
        further = sorted(self._ids.values())[len(scores) :]
        if further != list(range(len(scores), len(scores) + len(further))):
            raise self._refused(f"the ids of added tokens must follow {len(scores) - 1} at once")
        scores += [[self._tokens.added[token_id].content, least] for token_id in further]
        (unknown,) = (i for i, piece in enumerate(self._pieces) if piece.type == UNKNOWN)
        return {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": scores,
            "byte_fallback": bool(bytes_),
        }

    def _missing_chars(self) -> list[str]:
        """Return the characters of pieces that are no piece themselves."""
        singles = self._ids.keys()
        return sorted({char for piece in self._of_type(NORMAL) for char in piece.text} - singles)


def _replaced(expression: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": content}
