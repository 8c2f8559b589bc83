"""Tensors of a Hugging Face folder, by name.

Knows safetensors files and their index. Knows nothing of what a tensor is for.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.checkpoints.safetensors_header import (
    DTYPES,
    StoredTensor,
    read_header,
    stored_tensors,
)
from pagoda_engine.checkpoints.weight_reader import Piece, WeightReader
from pagoda_engine.errors import CheckpointError

OnProgress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_IGNORED = "rotary_emb.inv_freq"  # old exports carry what the configuration says anyway


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model, sorted by name.

    Raises:
        CheckpointError: there are none, or the index names one that is not there.
    """
    if (folder / _INDEX).is_file():
        names = ConfigReader.open(folder / _INDEX).section("weight_map").fields.values()
        if not names or not all(isinstance(name, str) for name in names):
            raise CheckpointError(folder / _INDEX, "weight_map must name a file for each tensor")
        paths = [folder / name for name in sorted(set(names))]
    else:
        paths = [folder / _SINGLE]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise CheckpointError(path, "is missing; only safetensors weights can be loaded")
    return tuple(paths)


class WeightFiles:
    """A `WeightSource` that reads; every tensor must be taken once, `check_all_taken` says so."""

    def __init__(
        self,
        paths: Sequence[Path],
        reader: WeightReader,
        dtype: torch.dtype,
        device: torch.device,
        *,
        ignored: Collection[str] = (),
        on_progress: OnProgress | None = None,
    ) -> None:
        """Read the headers.

        Args:
            paths: safetensors files.
            reader: of the same device; its owner closes it.
            dtype: of what `take` returns.
            device: where it is.
            ignored: names that need not be taken.
            on_progress: called by `take` in its thread.

        Raises:
            CheckpointError: a file cannot be read or is no safetensors file, or two hold the same
                tensor.
        """
        self._reader = reader
        self._dtype = dtype
        self._device = device
        self._on_progress = on_progress
        self._folder = paths[0].parent
        self._tensors: dict[str, StoredTensor] = {}
        for path in paths:
            try:
                with path.open("rb") as file:
                    header = read_header(path, file)
            except OSError as error:
                raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
            for name, tensor in stored_tensors(path, header).items():
                if name in self._tensors:
                    raise CheckpointError(path, f"holds {name}, and so does another file")
                self._tensors[name] = tensor
        self._left = {n for n in self._tensors if not n.endswith(_IGNORED) and n not in ignored}
        self._num_bytes = sum(self._tensors[name].num_bytes for name in self._left)
        self._num_loaded_bytes = 0

    def take(self, parts: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> torch.Tensor:
        """Return tensors joined, see `WeightSource`; the device has them.

        Raises:
            CheckpointError: one is missing, has another shape or no float dtype, or cannot be read.
        """
        for name, part_shape in parts.items():  # before memory is taken for what a file only claims
            self._stored(name, part_shape)
        joined = torch.empty(shape, dtype=self._dtype, device=self._device)
        for num_bytes in self._reader.read(self._pieces(parts, joined.view(-1))):
            self._num_loaded_bytes += num_bytes
            if self._on_progress is not None:
                self._on_progress(self._num_loaded_bytes, self._num_bytes)
        return joined

    def check_all_taken(self) -> None:
        """Raise CheckpointError if the files hold a tensor that nothing asked for.

        A tensor left over means that the decoder computes something else than the checkpoint
        describes.
        """
        if self._left:
            shown = ", ".join(sorted(self._left)[:5])
            raise CheckpointError(self._folder, f"{len(self._left)} tensors have no use: {shown}")

    def _pieces(
        self, parts: Mapping[str, tuple[int, ...]], joined: torch.Tensor
    ) -> Iterator[Piece]:
        begin = 0
        for name, shape in parts.items():
            stored, dtype = self._stored(name, shape)
            end = begin + stored.num_bytes // dtype.itemsize
            yield Piece(stored.path, stored.offset, dtype, joined[begin:end])
            self._left.discard(name)
            begin = end

    def _stored(self, name: str, shape: tuple[int, ...]) -> tuple[StoredTensor, torch.dtype]:
        """Return a tensor of the files and its dtype there; raise unless it is as wanted."""
        stored = self._tensors.get(name)
        if stored is None:
            raise CheckpointError(self._folder, f"tensor {name} is missing")
        if stored.shape != shape:
            raise CheckpointError(
                self._folder,
                f"tensor {name} is {list(stored.shape)}, config.json says {list(shape)}",
            )
        dtype = DTYPES.get(stored.dtype)
        if dtype is None:
            known = ", ".join(DTYPES)
            raise CheckpointError(
                self._folder, f"tensor {name} is {stored.dtype}, must be one of {known}"
            )
        return stored, dtype
