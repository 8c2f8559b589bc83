"""The boundary to a model's text files: what they are refused for, each time in one line.

They are anybody's. Libraries answer bad ones with exceptions of all kinds, the Rust ones with a
panic, which is no Exception. Knows nothing of what the files mean.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pagoda_gateway.errors import shorten
from pagoda_gateway.text.panics import is_panic
from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer import files


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
        return files.read_text(path)


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {shorten(text, 300)}"
