"""The text of a model's `tokenizer.json`: the file's own, or made of what the model has instead.

Gateways and workers read it here, so that both have the same tokens.
"""

from pathlib import Path

from pagoda_formats.gguf_file import is_gguf
from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.files import SAVE_IT, read_bytes, read_text
from pagoda_runtime.tokenizer.folder_tokens import FolderTokens
from pagoda_runtime.tokenizer.gguf import tokenizer_json as gguf_json
from pagoda_runtime.tokenizer.sentencepiece import tokenizer_json as sentencepiece_json
from pagoda_runtime.tokenizer.tiktoken import looks_like_ranks
from pagoda_runtime.tokenizer.tiktoken import tokenizer_json as tiktoken_json

TOKENIZER_JSON = "tokenizer.json"
_OTHERS = ("tokenizer.model", "tiktoken.model", "*.tiktoken")


def tokenizer_file(model: Path) -> Path:
    """Return the file that has a model's tokens: in its folder, or the GGUF file itself.

    Raises:
        ModelFolderError: there is none, or several and no tokenizer.json.
    """
    path = model / TOKENIZER_JSON
    if is_gguf(model):
        return model
    if path.is_file():
        return path
    found = sorted(file for name in _OTHERS for file in model.glob(name) if file.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found)
        raise ModelFolderError(f"{path} is missing, and of {names} there must be one. {SAVE_IT}")
    raise ModelFolderError(
        f"{path} is missing, and there is no tokenizer.model (of sentencepiece), tiktoken.model "
        f"or *.tiktoken to make it of. {SAVE_IT}"
    )


def tokenizer_text(model: Path) -> str:
    """Return the text of a model's tokenizer.json, or what it would be.

    Raises:
        OSError: a file cannot be read.
        UnicodeDecodeError: tokenizer.json is no text.
        ModelFolderError: there is none, or its tokens cannot be had exactly; says why.
    """
    path = tokenizer_file(model)
    if is_gguf(path):
        return gguf_json(path)
    if path.name == TOKENIZER_JSON:
        return read_text(path)
    data = read_bytes(path)
    tokens = FolderTokens.read(model)
    if looks_like_ranks(data):
        return tiktoken_json(path, data, tokens)
    return sentencepiece_json(path, data, tokens)
