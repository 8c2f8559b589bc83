"""Lets scripts here import each other, those of benchmarks/kernels, and Pagoda from a checkout."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_FOLDERS = (
    HERE,
    ROOT / "benchmarks" / "kernels",
    ROOT / "kernels",
    ROOT / "engine",
    ROOT / "worker",
    ROOT / "tests",
)


def missing_folders() -> list[str]:
    """Return what has to be added to `sys.path`."""
    return [folder for folder in map(str, _FOLDERS) if folder not in sys.path]
