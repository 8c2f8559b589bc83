"""What every kind of tokenizer in a GGUF file has: tokens, their types, special ones.

Knows metadata. Knows nothing of how a text becomes tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda_formats.gguf_file import GgufFile
from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.layout import around

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens."""

_PREFIX = "tokenizer.ggml."
_PADDING = re.compile(r"\[PAD\d+\]")
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # as the format spells it
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of one file, and typed access to the other fields of its tokenizer.

    Attributes:
        path: the file.
        tokens: text of each id; an id that only pads the model's table has "".
        types: of each id; see NORMAL and the others.
    """

    path: Path
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    _fields: Mapping[str, Any]

    @classmethod
    def of(cls, file: GgufFile) -> "Vocabulary":
        """Take the tokens of a file.

        Raises:
            ModelFolderError: it has none, or two of them are the same.
        """
        fields = {
            key.removeprefix(_PREFIX): value
            for key, value in file.metadata.items()
            if key.startswith(_PREFIX)
        }
        texts = _list(file.path, fields, "tokens", str)
        types = _list(file.path, fields, "token_type", int) if "token_type" in fields else []
        types = types or [NORMAL] * len(texts)
        if not texts or len(types) != len(texts):
            raise ModelFolderError(
                f"{file.path}: {_PREFIX}tokens has {len(texts)} tokens and {_PREFIX}token_type "
                f"{len(types)}, must have as many, and some"
            )
        tokens = tuple(
            "" if kind == UNUSED and _PADDING.fullmatch(text) else text
            for text, kind in zip(texts, types, strict=True)
        )
        return cls(file.path, tokens, tuple(types), fields)

    @property
    def ids(self) -> dict[str, int]:
        """Return the id of each token; of equal ones the first."""
        ids: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            if token:
                ids.setdefault(token, i)
        return ids

    @property
    def special_tokens(self) -> dict[str, str]:
        """Return the texts of bos_token, eos_token and so on, as far as the file names them."""
        found = {name: self.token_of(field) for name, field in _SPECIAL.items()}
        return {name: token for name, token in found.items() if token}

    def token_of(self, field: str) -> str:
        """Return the token whose id a field says, or "".

        Raises:
            ModelFolderError: there is no token of that id.
        """
        if field not in self._fields:
            return ""
        token_id = self._fields[field]
        if type(token_id) is not int or not 0 <= token_id < len(self.tokens):
            raise ModelFolderError(
                f"{self.path}: {_PREFIX}{field} is {token_id!r}, must be below {len(self.tokens)}"
            )
        return self.tokens[token_id]

    def text(self, field: str, default: str = "") -> str:
        """Return a string.

        Raises:
            ModelFolderError: it is something else.
        """
        return str(self._typed(field, default, str))

    def flag(self, field: str, default: bool) -> bool:
        """Return a truth value; raises as `text`."""
        return bool(self._typed(field, default, bool))

    def strings(self, field: str) -> list[str]:
        """Return a list of strings; raises as `text`, and where it is missing."""
        return _list(self.path, self._fields, field, str)

    def numbers(self, field: str) -> list[float]:
        """Return a list with a number for each token; raises as `strings`."""
        numbers: list[float] = _list(self.path, self._fields, field, float)
        if len(numbers) != len(self.tokens):
            raise ModelFolderError(
                f"{self.path}: {_PREFIX}{field} has {len(numbers)} numbers, must have one for each "
                f"of {len(self.tokens)} tokens"
            )
        return numbers

    def added_tokens(self) -> list[dict[str, Any]]:
        """Return the tokens that are found in a text before anything else, for tokenizer.json."""
        return [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if token and kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]

    def post_processor(self, adds_bos: bool) -> dict[str, Any] | None:
        """Return what puts BOS and EOS around a text, for tokenizer.json; None for neither.

        Args:
            adds_bos: where the file does not say.

        Raises:
            ModelFolderError: the file wants one that it does not name.
        """
        found = []
        for field, default in (("bos", adds_bos), ("eos", False)):
            if self.flag(f"add_{field}_token", default):
                token = self.token_of(f"{field}_token_id")
                if not token and f"add_{field}_token" in self._fields:
                    raise ModelFolderError(
                        f"{self.path}: {_PREFIX}add_{field}_token is true, but there is no "
                        f"{_PREFIX}{field}_token_id"
                    )
                found.append(token)
            else:
                found.append("")
        bos, eos = found
        return around(self.ids, bos, eos)

    def _typed(self, field: str, default: object, kind: type) -> object:
        value = self._fields.get(field, default)
        if not isinstance(value, kind):
            raise ModelFolderError(
                f"{self.path}: {_PREFIX}{field} is {value!r}, must be {kind.__name__}"
            )
        return value


def _list(path: Path, fields: Mapping[str, Any], field: str, kind: type) -> list[Any]:
    values = fields.get(field)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        shown = "missing" if values is None else f"no list of {kind.__name__}"
        raise ModelFolderError(f"{path}: {_PREFIX}{field} is {shown}")
    return values
