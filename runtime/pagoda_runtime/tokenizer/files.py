"""Files of a model folder that may be anybody's: read whole, within a limit."""

import json
from pathlib import Path
from typing import Any

from pagoda_runtime.errors import ModelFolderError

MAX_FILE_BYTES = 256 << 20  # the largest tokenizers in use have less than 40 MB
SAVE_IT = (
    "Save a tokenizer.json with transformers: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)
"""What to do where tokens cannot be had without it."""


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        OSError: it cannot be read.
        ModelFolderError: it is too large.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ModelFolderError(f"{path} has {size} bytes, must have {MAX_FILE_BYTES} or fewer")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return a file's text; raises as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one where there is no file.

    Raises:
        ModelFolderError: it is none, or too large.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{path} is unusable: {type(error).__name__}: {reason}") from error
    if not isinstance(found, dict):
        raise ModelFolderError(f"{path} has {type(found).__name__}, must have one JSON object")
    return found
