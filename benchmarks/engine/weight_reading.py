"""Measures reading a checkpoint: by the engine's WeightReader, and as a copy from mapped pages.

    python benchmarks/engine/weight_reading.py [--gib 2] [--repeats 5] [--folder DIR]

Writes a file of bf16 tensors of 64 MiB into the folder (the system's temporary one), removes it in
the end. Both ways fill the same tensors on the CPU, in turns, with the file's pages dropped before
(cold) and not. Prints GB/s, median (least-greatest). A cold read is as fast as that folder's disk.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.checkpoints.weight_reader import WeightReader
from pagoda_engine.checkpoints.weights import WeightFiles, tensors_of

CPU = torch.device("cpu")
SHAPE = (4096, 8192)


def read(path: Path, names: list[str]) -> None:
    """As `load_model` does."""
    with WeightReader(CPU) as reader:
        files = WeightFiles(path, tensors_of([path]), reader, torch.bfloat16, CPU)
        for name in names:
            files.take([Part(name, SHAPE)], SHAPE)


def copy_mapped(path: Path, names: list[str]) -> None:
    """As a loader does that maps the file."""
    with safe_open(path, framework="pt") as file:
        for name in names:
            torch.empty(SHAPE, dtype=torch.bfloat16).copy_(file.get_tensor(name))


def drop_pages(path: Path) -> None:
    """Let the system forget what it has of the file."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def timed(way: Callable[[Path, list[str]], None], path: Path, names: list[str]) -> float:
    """Return bytes per second."""
    started = time.perf_counter()
    way(path, names)
    return path.stat().st_size / (time.perf_counter() - started)


def main() -> None:
    """Print four lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    names = [f"tensor-{i}" for i in range(int(options.gib * 16))]
    speeds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "model.safetensors"
        save_file({name: torch.rand(SHAPE).bfloat16() for name in names}, path)
        for repeat in range(options.repeats):
            for way in (copy_mapped, read)[:: 1 if repeat % 2 else -1]:
                drop_pages(path)
                for state in ("cold", "warm"):
                    found = timed(way, path, names)
                    speeds.setdefault((way.__name__, state), []).append(found / 1e9)
    for (way_name, state), found_speeds in speeds.items():
        middle = statistics.median(found_speeds)
        least, most = min(found_speeds), max(found_speeds)
        print(f"{way_name:12} {state}: {middle:.2f} GB/s ({least:.2f}-{most:.2f})")


if __name__ == "__main__":
    main()
