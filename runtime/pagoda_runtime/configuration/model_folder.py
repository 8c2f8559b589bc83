"""Where the model is: a folder, a GGUF file, the local Hugging Face cache, or the demo.

Never downloads.
"""

import os
from pathlib import Path

from pagoda_formats.gguf_file import SUFFIX, is_gguf
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.configuration.values import expanded
from pagoda_runtime.errors import ModelFolderError

DEMO_MODEL = Path("demo") / "model"


def resolve_model_folder(common: CommonSettings) -> Path:
    """Return the absolute folder, or the GGUF file, of the model that `common.model` names.

    Raises:
        ModelFolderError: there is none; says what to do.
    """
    return find_model(common.model, "PAGODA_MODEL") if common.model else find_demo_model()


def find_model(model: str, setting: str) -> Path:
    """Return the absolute folder, or the GGUF file, of the model that `setting` names.

    It may name a folder, a GGUF file, a folder with one of those, or a model of the hub.

    Raises:
        ModelFolderError: there is none; says what to do.
    """
    try:
        return _found(model, setting)
    except ValueError as error:
        raise ModelFolderError(f"{setting}={model!r}: {error}") from error
    except OSError as error:  # most often: this user may not look into the folder
        where = f"{error.filename} cannot be read: {error.strerror}"
        raise ModelFolderError(f"{setting}={model!r}: {where}") from error


def _found(model: str, setting: str) -> Path:
    folder = expanded(Path(model))
    if folder.is_dir():
        return _checked(folder.resolve())
    if is_gguf(folder) and folder.is_file():
        return folder.resolve()
    if _looks_like_path(model) or is_gguf(folder):
        raise ModelFolderError(f"{setting}={model!r}: there is no such folder or file")
    snapshot = cached_snapshot(model)
    if snapshot is None:
        raise ModelFolderError(
            f"{setting}={model!r} is neither a folder nor in the Hugging Face cache "
            f"({_hub_cache()}): fetch it with `hf download {model}`, or give a folder"
        )
    return _checked(snapshot)


def find_demo_model(start: Path | None = None) -> Path:
    """Return the repository's demo model: `demo/model` in `start`, above it, or above this file.

    Raises:
        ModelFolderError: not found.
    """
    here = (Path.cwd() if start is None else start).resolve()
    for place in (here, *here.parents, *Path(__file__).resolve().parents):
        if (place / DEMO_MODEL / "config.json").is_file():
            return place / DEMO_MODEL
    raise ModelFolderError(
        f"the demo model ({DEMO_MODEL}) was not found above {here}: "
        "set PAGODA_MODEL to a folder in Hugging Face layout"
    )


def cached_snapshot(name: str) -> Path | None:
    """Return the snapshot of a hub name (`owner/model[@revision]`) in the local cache, if there."""
    repository, _, revision = name.partition("@")
    root = _hub_cache() / f"models--{repository.replace('/', '--')}"
    reference = root / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = root / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(home) / "hub"


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def _checked(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(path for path in folder.iterdir() if is_gguf(path) and path.is_file())
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(path.name for path in files[:5])
        raise ModelFolderError(f"{folder} has {len(files)} GGUF files: name one of them ({names})")
    raise ModelFolderError(f"{folder} has no config.json and no {SUFFIX} file: it is no model")
