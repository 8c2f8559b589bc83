"""Which draft model a worker loads beside its model, and that both have the same tokens.

Knows folders and tokenizers. Knows nothing of weights.
"""

import json
from pathlib import Path
from typing import Any

from pagoda_runtime.configuration.model_folder import find_model
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import ModelFolderError, SettingsError
from pagoda_runtime.tokenizer.text import tokenizer_text

SETTING = "PAGODA_DRAFT_MODEL"


def find_draft(common: CommonSettings, model_folder: Path) -> Path | None:
    """Return the folder, or the GGUF file, of the draft model; None: there shall be none.

    Raises:
        SettingsError: speculation is off.
        ModelFolderError: there is no such model, or its tokens are not the model's.
    """
    if not common.draft_model:
        return None
    if common.speculation == "off":
        raise SettingsError(
            [f"{SETTING}={common.draft_model!r}: PAGODA_SPECULATION is off: unset one of them"]
        )
    folder = find_model(common.draft_model, SETTING)
    ours, theirs = _tokens(model_folder), _tokens(folder)
    if ours != theirs:
        token = min(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))[0]
        raise ModelFolderError(
            f"{SETTING}={common.draft_model!r} has another tokenizer than {model_folder}: "
            f"{token!r} is token {theirs.get(token, 'none')} there and "
            f"{ours.get(token, 'none')} here; a draft needs the same tokens"
        )
    return folder


def _tokens(folder: Path) -> dict[str, int]:
    """Return the ids of all tokens of a model.

    Raises:
        ModelFolderError: they cannot be read.
    """
    try:
        parsed: dict[str, Any] = json.loads(tokenizer_text(folder))
        vocab = parsed["model"]["vocab"]
        if isinstance(vocab, list):  # of a unigram model: pieces with their scores, by id
            vocab = {piece: i for i, (piece, _) in enumerate(vocab)}
        added = {token["content"]: token["id"] for token in parsed.get("added_tokens", ())}
        return {**vocab, **added}
    except (OSError, ValueError, KeyError, TypeError, ModelFolderError) as error:
        raise ModelFolderError(
            f"{SETTING}: the tokens of {folder} are not known, as a draft needs them "
            f"({type(error).__name__}: {error})"
        ) from error
