"""Where a run took place: GPU, driver, versions, commit, command. Names no path and no person."""

import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu.harness.importable import ROOT


def gpu_slug(device_name: str) -> str:
    """Folder of a GPU's results: ``NVIDIA H100 80GB HBM3`` -> ``h100-80gb-hbm3``."""
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    kept = [word for word in words if word not in ("nvidia", "tesla", "geforce")]
    return "-".join(kept) or "unknown"


def describe(device_name: str, arguments: list[str]) -> dict[str, Any]:
    """Provenance of one run on the current CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": device_name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        **versions(),
        "commit": commit(ROOT),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": shlex.join(["python", "benchmarks/gpu/check_gpu.py", *arguments]),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of what the kernels run on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy", "transformers", "flashinfer-python"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit(root: Path) -> str | None:
    """Commit of the checkout, marked if files differ from it; None without git or history."""
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if not head:
        return None
    return head + ("-changed" if _output("git", "-C", str(root), "status", "--porcelain") else "")


def _driver() -> str | None:
    text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return text.splitlines()[0] if text else None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def has_cuda() -> tuple[bool, str]:
    """Whether torch sees a CUDA device, and the sentence to print if it does not."""
    try:
        import torch
    except ImportError as error:
        return False, f"check-gpu needs torch in {sys.executable}: {error}"
    if not torch.cuda.is_available():
        return False, (
            "check-gpu needs a CUDA device and torch sees none; nothing was measured. "
            "Run it on a GPU host, or choose the Python that holds a CUDA torch: "
            "make check-gpu PYTHON=..."
        )
    return True, ""
