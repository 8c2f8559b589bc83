"""What the JSON files beside a vocabulary say of it: whose it is, added and special tokens.

Reads tokenizer_config.json, config.json and, as older models have them, special_tokens_map.json
and added_tokens.json. Knows nothing of vocabularies.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.files import read_object

MAX_ID = 10**9
_ID = re.compile(r"[0-9]{1,9}")
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in a text before anything else."""

    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    def entry(self, token_id: int) -> dict[str, Any]:
        """Return what tokenizer.json has of it."""
        return {
            "id": token_id,
            "content": self.content,
            "single_word": self.single_word,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": self.normalized,
            "special": self.special,
        }


@dataclass(frozen=True, slots=True)
class FolderTokens:
    """One folder's.

    Attributes:
        tokenizer_class: as tokenizer_config.json has it, without "Fast"; "" where it has none.
        model_type: as config.json has it, or "".
        module: of the folder's own tokenizer code, as `auto_map` names it; it is never run.
        added: tokens by id.
        special: texts by name, "bos_token" and so on.
        further_special: texts of additional_special_tokens.
    """

    path: Path
    tokenizer_class: str
    model_type: str
    module: str
    added: Mapping[int, AddedToken]
    special: Mapping[str, str]
    further_special: tuple[str, ...]
    _config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "FolderTokens":
        """Read the files that are there.

        Raises:
            ModelFolderError: one of them is unusable.
        """
        path = folder / "tokenizer_config.json"
        older = read_object(folder / "special_tokens_map.json")
        config = {**older, **read_object(path)}
        named = {f"{name}_token": _content(config.get(f"{name}_token")) for name in _SPECIAL}
        special = {name: text for name, text in named.items() if text}
        further = config.get("additional_special_tokens") or config.get("extra_special_tokens")
        listed = further if isinstance(further, list) else []
        further_special = tuple(text for text in map(_content, listed) if text)
        return cls(
            path=path,
            tokenizer_class=_text(config.get("tokenizer_class")).removesuffix("Fast"),
            model_type=_text(read_object(folder / "config.json").get("model_type")),
            module=_module(config.get("auto_map")),
            added=_added(folder, path, config, {*special.values(), *further_special}),
            special=special,
            further_special=further_special,
            _config=config,
        )

    def flag(self, name: str) -> bool | None:
        """Return a truth value; None where there is none, or null.

        Raises:
            ModelFolderError: it is something else.
        """
        value = self._config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelFolderError(f"{self.path}: {name} is {value!r}, must be true or false")
        return value


def _added(
    folder: Path, path: Path, config: Mapping[str, Any], special: set[str]
) -> dict[int, AddedToken]:
    found: dict[int, AddedToken] = {}
    older = folder / "added_tokens.json"
    for content, token_id in read_object(older).items():
        if type(token_id) is not int or token_id < 0 or not content:
            raise ModelFolderError(
                f"{older}: {content!r} has the id {token_id!r}, must be a number"
            )
        found[token_id] = AddedToken(content, special=content in special)
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise ModelFolderError(f"{path}: added_tokens_decoder is no object")
    for key, value in decoder.items():
        content = _content(value)
        if not _ID.fullmatch(key) or not content:
            raise ModelFolderError(
                f"{path}: added_tokens_decoder[{key[:20]!r}] must have an id below {MAX_ID} for a "
                "key, and `content`"
            )
        names = ("special", "lstrip", "rstrip", "single_word")
        flags = {name: value.get(name) is True for name in names}
        found[int(key)] = AddedToken(content, **flags)
    return found


def _module(auto_map: Any) -> str:
    """Return `tokenization_x` of {"AutoTokenizer": ["tokenization_x.Class", null]}, or ""."""
    named = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else None
    first = named[0] if isinstance(named, list) and named else named
    return _text(first).rpartition("--")[2].partition(".")[0]


def _content(value: Any) -> str:
    return _text(value.get("content") if isinstance(value, dict) else value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
