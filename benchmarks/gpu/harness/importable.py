"""Lets a bare checkout import these folders, Pagoda and what its tests share."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2]
ROOT = BENCHMARKS.parent
_MEMBERS = ("formats", "kernels", "engine", "worker", "tests")
FOLDERS = (BENCHMARKS, *(ROOT / name for name in _MEMBERS))
"""All that a process beside this one has to find, too."""


def missing_folders() -> list[str]:
    """Return what has to be added to `sys.path`."""
    return [folder for folder in map(str, FOLDERS) if folder not in sys.path]
