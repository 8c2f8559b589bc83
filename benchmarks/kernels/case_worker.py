"""A process that checks or times cases, one JSON line before and one after each.

A kernel that faults takes its CUDA context with it, so cases run in a process that may die: the
lines say which case it was in. Started by `supervise.py`; knows nothing of budgets beyond its own.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from discovery import (
    Unloadable,
    bench_files,
    declared_cases,
    device_named,
    make_importable,
)
from orphans import end_with_parent

DEVICE_LOST = 70
"""Exit status after a launch that left the device unusable; its row has been written."""


def main(arguments: list[str]) -> int:
    """Run one phase; returns the exit status."""
    options = _parse(arguments)
    make_importable()
    from ceilings import Ceilings, measure_ceilings
    from measure import baseline_rows, check_row, time_row
    from timing import CLOCKS

    clock = CLOCKS[options.device]()
    device = device_named(options.device)
    if options.phase == "ceilings":
        measure_ceilings(clock, device).write(options.output)
        return 0
    run: dict[str, Callable[[Any, int], dict[str, Any]]] = {
        "check": lambda case, index: check_row(case, options.seed + index, clock),
        "time": lambda case, _: time_row(case, Ceilings.read(options.ceilings), clock),
        "baselines": lambda case, _: baseline_rows(case, clock, are_compiled=False),
        "compiled": lambda case, _: baseline_rows(case, clock, are_compiled=True),
    }
    return _run_cases(options, device, run[options.phase], clock)


def _run_cases(options: argparse.Namespace, device: Any, run: Any, clock: Any) -> int:
    shard, num_shards = options.shard
    allowed = None
    if options.only is not None:
        allowed = {tuple(pair) for pair in json.loads(options.only.read_text(encoding="utf-8"))}
    files = bench_files(options.bench, options.ops)
    for index, case in enumerate(declared_cases(files, device)):
        if index < options.first or index % num_shards != shard:
            continue
        name = "" if isinstance(case, Unloadable) else case.name
        if allowed is not None and (case.op, name) not in allowed:
            continue
        _report(options.output, {"begin": index, "op": case.op, "name": name})
        row, device_lost = _run_one(case, index, run, clock)
        _report(options.output, {"end": index, "row": row})
        if device_lost:
            return DEVICE_LOST
        _free(device)
    return 0


def _run_one(case: Any, index: int, run: Any, clock: Any) -> tuple[dict[str, Any], bool]:
    from measure import reason_of

    if isinstance(case, Unloadable):
        return {"status": "crashed", "reason": case.reason}, False
    try:
        return run(case, index), False
    except Exception as error:
        row = {"status": "crashed", "reason": reason_of(error)}
    try:
        clock.check_device()
    except Exception:
        return row, True
    return row, False


def _free(device: Any) -> None:
    """Give what a case allocated back to the device, for the workers beside this one."""
    gc.collect()
    if device is not None:
        import torch

        torch.cuda.empty_cache()


def _report(output: Path, line: dict[str, Any]) -> None:
    with output.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "at": time.monotonic()}) + "\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    def shard_of(text: str) -> tuple[int, int]:
        shard, _, num_shards = text.partition("/")
        return int(shard), int(num_shards)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=("ceilings", "check", "time", "baselines", "compiled"))
    parser.add_argument("--bench", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", type=shard_of, default=(0, 1))
    parser.add_argument("--first", type=int, default=0, help="index of the first case to run")
    parser.add_argument("--only", type=Path, help="JSON list of [op, name] to run")
    parser.add_argument("--ceilings", type=Path)
    parser.add_argument("--ops", nargs="*", default=())
    return parser.parse_args(arguments)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
