"""Tensors of a Hugging Face folder, by name, without reading files that nobody asks for.

Knows safetensors files and their index. Knows nothing of what a tensor is for.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pagoda.engine.errors import CheckpointError
from pagoda.engine.models.config_reader import ConfigReader

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_IGNORED = ("rotary_emb.inv_freq",)  # old exports carry what the configuration says anyway


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model, sorted by name.

    Raises:
        CheckpointError: there are none, or the index names one that is not there.
    """
    if (folder / _INDEX).is_file():
        weight_map = ConfigReader.open(folder / _INDEX).section("weight_map").fields
        paths = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        paths = [folder / _SINGLE]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise CheckpointError(path, "is missing; only safetensors weights can be loaded")
    return tuple(paths)


class WeightFiles:
    """Memory-mapped tensors. Every tensor must be taken once; `check_all_taken` says so."""

    def __init__(self, paths: Sequence[Path], dtype: torch.dtype, device: torch.device) -> None:
        """Open the files.

        Raises:
            CheckpointError: a file is not in safetensors format, or two hold the same tensor.
        """
        self._dtype = dtype
        self._device = device
        self._folder = paths[0].parent
        self._files: dict[str, Any] = {}  # safetensors has no annotations
        for path in paths:
            try:
                file: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(path, f"is no safetensors file: {error}") from error
            for name in file.keys():  # noqa: SIM118  not a dict
                if name in self._files:
                    raise CheckpointError(path, f"holds {name}, and so does another file")
                self._files[name] = file
        self._left = {name for name in self._files if not name.endswith(_IGNORED)}

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one tensor in the engine's dtype on its device; the caller owns it.

        Raises:
            CheckpointError: it is missing or has another shape.
        """
        tensor = self._mapped(name, shape)
        # A copy in any case: a mapped page would be read again whenever memory is short.
        return torch.empty(shape, dtype=self._dtype, device=self._device).copy_(tensor)

    def take_rows(self, names: Iterable[str], shapes: Iterable[tuple[int, ...]]) -> torch.Tensor:
        """Return several tensors joined along their first dimension, e.g. Q, K and V."""
        parts = [self._mapped(n, shape) for n, shape in zip(names, shapes, strict=True)]
        num_rows = sum(part.shape[0] for part in parts)
        joined = torch.empty(
            (num_rows, *parts[0].shape[1:]), dtype=self._dtype, device=self._device
        )
        first = 0
        for part in parts:
            joined[first : first + part.shape[0]].copy_(part)
            first += part.shape[0]
        return joined

    def check_all_taken(self, *, except_for: Iterable[str] = ()) -> None:
        """Raise CheckpointError if the files hold a tensor that nothing asked for.

        A tensor left over means that the decoder computes something else than the checkpoint
        describes.
        """
        left = sorted(self._left - set(except_for))
        if left:
            shown = ", ".join(left[:5])
            raise CheckpointError(self._folder, f"{len(left)} tensors have no use: {shown}")

    def _mapped(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        file = self._files.get(name)
        if file is None:
            raise CheckpointError(self._folder, f"tensor {name} is missing")
        tensor: torch.Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                self._folder,
                f"tensor {name} is {list(tensor.shape)}, config.json says {list(shape)}",
            )
        self._left.discard(name)
        return tensor
