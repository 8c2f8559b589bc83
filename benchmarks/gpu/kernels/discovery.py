"""Finds the `bench_<op>.py` files of a folder and the cases each of them declares.

Knows file names and the `Case` interface. Knows nothing of devices, clocks or results.
"""

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu.kernels.case import Case

CASES = Path(__file__).resolve().parent / "cases"


@dataclass(frozen=True)
class Unloadable:
    """A bench file that could not say its cases."""

    op: str
    error: Exception
    name: str = ""


def device_named(name: str) -> Any:
    """What bench files are given: the current CUDA device; None for cpu, without torch."""
    if name == "cpu":
        return None
    import torch

    return torch.device(name)


def bench_files(folder: Path, ops: Iterable[str] = ()) -> list[Path]:
    """Sorted bench files; only those of `ops` if any is named.

    Raises:
        ValueError: an op has no bench file.
    """
    found = {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}
    wanted = tuple(ops) or tuple(found)
    unknown = [op for op in wanted if op not in found]
    if unknown:
        raise ValueError(f"ops: expected some of {', '.join(found)}, got {', '.join(unknown)}")
    return [found[op] for op in sorted(wanted)]


def load_bench(path: Path) -> ModuleType:
    """Import one bench file by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def declared_cases(files: Iterable[Path], device: Any) -> Iterator[Case | Unloadable]:
    """Yield the cases of each file in order; a file that raises counts as one entry."""
    for path in files:
        try:
            cases = list(load_bench(path).cases(device))
        except Exception as error:
            yield Unloadable(path.stem.removeprefix("bench_"), error)
            continue
        yield from cases
