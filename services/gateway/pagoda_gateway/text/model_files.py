"""The boundary to a model's text files: what they are refused for, each time in one line.

They are anybody's. Libraries answer bad ones with exceptions of all kinds, the Rust ones with a
panic, which is no Exception. Knows nothing of what the files mean.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagoda_gateway.errors import shorten
from pagoda_gateway.text.panics import is_panic
from pagoda_runtime.errors import ModelFolderError

MAX_FILE_BYTES = 256 << 20  # the largest tokenizers in use have less than 40 MB


@contextlib.contextmanager
def naming(path: Path, field: str = "") -> Iterator[None]:
    """Turn whatever goes wrong inside into one line that names the file, and maybe the field.

    Raises:
        ModelFolderError: in place of any other error.
    """
    where = f"{path}: {field}" if field else f"{path}"
    try:
        yield
    except ModelFolderError:
        raise
    except Exception as error:
        raise ModelFolderError(f"{where} is unusable: {_describe(error)}") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelFolderError(f"{where} is unusable: {_describe(error)}") from error


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        ModelFolderError: it is too large, or no UTF-8.
    """
    with naming(path):
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelFolderError(f"{path} has {size} bytes, must have {MAX_FILE_BYTES} or fewer")
        return path.read_text(encoding="utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ModelFolderError: it is none.
    """
    text = read_text(path)
    with naming(path):
        found = json.loads(text)
    if not isinstance(found, dict):
        raise ModelFolderError(f"{path} has {type(found).__name__}, must have one JSON object")
    return found


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {shorten(text, 300)}"
