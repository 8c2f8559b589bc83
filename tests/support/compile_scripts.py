"""Runs the scripts of tests/kernels/compile and keeps what they report, once per process.

A script `compile*_for_gpu.py` compiles an operator family as it is launched and prints one JSON
object per kernel. Run as a module it writes the table of resources:

    python -m support.compile_scripts benchmarks/results/compile/resources.json
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.compiled_kernel import (
    EVERYTHING_VARIABLE,
    MAIN_CAPABILITY,
    SHARED_BYTES,
    STREAMING,
)

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "kernels" / "compile"
SPILLED_BYTES = 16
"""Stack per thread that is tolerated: a few addresses, no tile."""

H200_BYTES_PER_CYCLE = 4.8e12 / 132 / 1.755e9
"""What the memory of an H200 delivers to each of its processors: 4.8 TB/s, at 1.755 GHz."""

CACHE = ROOT / "build" / "triton"

Facts = dict[str, Any]


def compile_scripts() -> tuple[Path, ...]:
    """Every compile script, sorted."""
    return tuple(sorted(SCRIPTS.glob("compile*_for_gpu.py")))


@functools.cache
def compiled_by(script: Path) -> tuple[Facts, ...]:
    """What one script reports. Triton keeps what it compiled by source, options and toolchain."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    paths = [str(ROOT / "kernels"), str(ROOT / "tests"), *sys.path]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["OMP_NUM_THREADS"] = "1"
    environment["TRITON_CACHE_DIR"] = str(CACHE)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(line) for line in done.stdout.splitlines())


def compiled_by_all() -> list[Facts]:
    """What all scripts report; two run at a time."""
    with ThreadPoolExecutor(2) as pool:
        return [facts for found in pool.map(compiled_by, compile_scripts()) for facts in found]


def too_large(compiled: Sequence[Facts]) -> list[Facts]:
    """Kernels that want more shared memory than a block may use."""
    return [facts for facts in compiled if facts["shared"] > SHARED_BYTES[facts["capability"]]]


def spilling(compiled: Sequence[Facts]) -> list[Facts]:
    """Kernels that keep more than a few addresses in memory instead of registers."""
    return [facts for facts in compiled if facts["STACK"] + facts["LOCAL"] > SPILLED_BYTES]


def bound_by_issue(compiled: Sequence[Facts]) -> list[Facts]:
    """Kernels that stream from memory and whose instructions alone hold an H200's back."""
    return [
        facts
        for facts in compiled
        if facts["kernel"] in STREAMING
        and facts["capability"] == MAIN_CAPABILITY
        and "float32" not in facts["case"]
        and facts["copied_per_cycle"] < H200_BYTES_PER_CYCLE
    ]


def resource_table(compiled: Sequence[Facts]) -> dict[str, Any]:
    """The facts worth keeping, sorted, beside the versions that made them."""
    names = ("kernel", "case", "capability", "num_warps", "REG", "STACK", "LOCAL", "shared",
             "copied_per_cycle")  # fmt: skip
    rows = sorted([facts[name] for name in names] for facts in compiled)
    columns = ["kernel", "case", "capability", "num_warps", "registers", "stack_bytes",
               "local_bytes", "shared_bytes", "copied_bytes_per_cycle"]  # fmt: skip
    return {"torch": version("torch"), "triton": version("triton"), "columns": columns,
            "rows": rows}  # fmt: skip


def write_table(path: Path) -> None:
    """Compile everything and write one row per line, so that a change is a line of a diff."""
    compiled = compiled_by_all()
    refused = too_large(compiled) + spilling(compiled)
    assert not refused, refused
    table = resource_table(compiled)
    rows = ",\n  ".join(json.dumps(row) for row in table.pop("rows"))
    head = json.dumps(table, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    os.environ[EVERYTHING_VARIABLE] = "1"
    write_table(Path(sys.argv[1]))
