"""Tile shapes measured on a GPU: one JSON file per GPU, read once, never searched while serving.

Defaults live with the kernels and are reasoned from the roofline and from compile reports; an entry
here replaces them for one operator and shape. Knows names and numbers. Knows nothing of kernels.
"""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

TUNING_FOLDER = Path(__file__).with_name("tuning")
_VENDOR_WORDS = ("nvidia", "tesla", "geforce")

Tile = dict[str, int]


class TileTable:
    """Measured tiles of one GPU by operator and shape, such as ``{"BLOCK_N": 64}``."""

    def __init__(self, gpu: str, tiles: Mapping[str, Mapping[str, Tile]]) -> None:
        self.gpu = gpu
        self._tiles = {op: dict(by_shape) for op, by_shape in tiles.items()}

    def lookup(self, op: str, shape: str, default: Tile) -> Tile:
        """The measured tile, or `default`.

        Raises:
            ValueError: the entry names other parameters than the kernel has.
        """
        found = self._tiles.get(op, {}).get(shape)
        if found is None:
            return default
        if found.keys() != default.keys():
            raise ValueError(
                f"tuning of {op} {shape} for {self.gpu}: expected {sorted(default)}, "
                f"got {sorted(found)}"
            )
        return found

    def replace(self, op: str, shape: str, tile: Tile | None) -> None:
        """Set one entry, or remove it if None. What launches afterwards uses it."""
        by_shape = self._tiles.setdefault(op, {})
        if tile is None:
            by_shape.pop(shape, None)
        else:
            by_shape[shape] = tile

    @classmethod
    def read(cls, path: Path, gpu: str) -> "TileTable":
        """Read a table; one without entries if there is no such file.

        Raises:
            ValueError: the file does not hold a table.
        """
        if not path.exists():
            return cls(gpu, {})
        tiles = json.loads(path.read_text(encoding="utf-8")).get("tiles")
        if not _is_table(tiles):
            raise ValueError(f"{path.name}: expected tiles as op -> shape -> name -> integer")
        return cls(gpu, tiles)

    def write(self, path: Path, measured: Mapping[str, str | None]) -> None:
        """Write the table; `measured` says when, how and with which versions."""
        data = {
            "gpu": self.gpu,
            "measured": dict(measured),
            "tiles": {op: by_shape for op, by_shape in sorted(self._tiles.items()) if by_shape},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def tuned(op: str, shape: str, device: torch.device, **default: int) -> tuple[int, ...]:
    """Values of the tile for this operator, shape and GPU, in the order of `default`."""
    if device.type != "cuda":
        return tuple(default.values())
    tile = table_of(device.index or 0).lookup(op, shape, default)
    return tuple(tile[name] for name in default)


def attention_shape(head_dim: int, element_bytes: int, kv_bytes: int | None = None) -> str:
    """Key of an attention kernel's tile; bytes of an element of q, and of KV if they are others."""
    shape = f"head_dim {head_dim}, {8 * element_bytes} bit"
    return shape if kv_bytes in (None, element_bytes) else f"{shape}, {8 * kv_bytes} bit KV"


@functools.cache
def table_of(device_index: int) -> TileTable:
    """Table of one CUDA device; read when its first kernel is launched, then kept."""
    gpu = gpu_key(str(torch.cuda.get_device_name(device_index)))
    return TileTable.read(tuning_file(gpu), gpu)


def tuning_file(gpu: str) -> Path:
    """Where the table of a GPU is kept."""
    return TUNING_FOLDER / f"{gpu}.json"


def gpu_key(device_name: str) -> str:
    """Family of a GPU: ``NVIDIA H100 80GB HBM3`` -> ``h100``; a name without one, in full."""
    words: list[str] = re.findall(r"[a-z0-9]+", device_name.lower())
    kept = [word for word in words if word not in _VENDOR_WORDS]
    if kept and re.fullmatch(r"[a-z]{1,2}\d+[a-z]?", kept[0]):
        return kept[0]
    return "-".join(kept) or "unknown"


def _is_table(tiles: Any) -> bool:
    return isinstance(tiles, dict) and all(
        isinstance(by_shape, dict)
        and all(
            isinstance(tile, dict) and all(type(value) is int for value in tile.values())
            for tile in by_shape.values()
        )
        for by_shape in tiles.values()
    )
