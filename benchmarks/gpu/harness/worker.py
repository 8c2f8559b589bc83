"""A process that measures the points of some groups, one JSON line before and one after each.

A fault in a kernel or a full memory takes the process along, so nothing else is in it: the lines
say what it was doing. Imports first, then waits for its turn: a GPU host takes seconds to import.
Knows nothing of budgets beyond those of single points.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.harness.importable import missing_folders

sys.path.extend(missing_folders())

from gpu.harness.orphans import end_with_parent
from gpu.harness.points import Group, NotAvailableError, Point, Setting, Subject, load_groups
from gpu.harness.rows import BUILD, Row, reason_of
from gpu.harness.supervise import DEVICE_LOST

BUILD_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Measure what the arguments name; returns the exit status."""
    options = _parse(arguments)
    # Takes seconds: torch, transformers.
    found = load_groups(options.plan, options.scope, options.device)
    by_name = {group.name: group for group in found}
    groups = [by_name[name] for name in options.groups]
    for group in groups:
        group.prepare()
    if options.wait:
        sys.stdin.read()
    setting = Setting(options.device, options.seed, options.folder)
    first_index = 0
    for group in groups:
        last_index = first_index + len(group.points)
        if options.first <= last_index and not _was_stopped(group, options.first - 1 - first_index):
            writer = _Writer(options.output, group.name, first_index, options.first)
            if _run_group(group, setting, writer):
                return DEVICE_LOST
        first_index = last_index + 1
    return 0


def _was_stopped(group: Group, failed_position: int) -> bool:
    """Whether what an earlier process failed in is what the rest of the group stands on."""
    if failed_position == 0:
        return True
    return failed_position > 0 and group.points[failed_position - 1].is_gate


class _Writer:
    """Lines of one group; says nothing of what an earlier process has reported."""

    def __init__(self, output: Path, group: str, first_index: int, first_wanted: int) -> None:
        self._output = output
        self._group = group
        self._first_index = first_index
        self._first_wanted = first_wanted

    def wants(self, position: int) -> bool:
        return self._first_index + position >= self._first_wanted

    def measure(self, position: int, name: str, seconds: float, run: Callable[[], Row]) -> Row:
        index = self._first_index + position
        begin = {"begin": index, "group": self._group, "name": name, "seconds": seconds}
        self._write(begin)
        row = _outcome(run)
        self._write({"end": index, "row": row})
        return row

    def _write(self, line: dict[str, Any]) -> None:
        with self._output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _run_group(group: Group, setting: Setting, writer: _Writer) -> bool:
    """Build and measure; returns whether the device can no longer be used."""
    subject: Subject | None = None

    def build() -> Row:
        nonlocal subject
        started = time.perf_counter()
        subject = group.build(setting)
        return {"seconds": time.perf_counter() - started, **subject.facts}

    row = writer.measure(0, BUILD, BUILD_SECONDS, build) if writer.wants(0) else _outcome(build)
    is_lost = row["status"] == "crashed" and _device_is_lost(setting)
    if subject is not None:
        try:
            is_lost = _run_points(group, setting, subject, writer)
        finally:
            subject.close()
    del subject
    _free(setting)
    return is_lost


def _run_points(group: Group, setting: Setting, subject: Subject, writer: _Writer) -> bool:
    for position, point in _wanted(group, writer):
        row = writer.measure(position, point.name, point.seconds, partial(point.run, subject))
        if row["status"] == "crashed":
            if _device_is_lost(setting):
                return True
            subject.reset()
        if point.is_gate and row["status"] != "passed":
            break
    return False


def _wanted(group: Group, writer: _Writer) -> Iterator[tuple[int, Point]]:
    for position, point in enumerate(group.points, start=1):
        if writer.wants(position):
            yield position, point


def _outcome(run: Callable[[], Row]) -> Row:
    started = time.perf_counter()
    try:
        row = {"status": "passed", **run()}
    except NotAvailableError as error:
        row = {"status": "not available", "reason": str(error)}
    except Exception as error:
        row = {"status": "crashed", "reason": reason_of(error)}
    return {**row, "took_seconds": time.perf_counter() - started}


def _device_is_lost(setting: Setting) -> bool:
    if setting.device == "cpu":
        return False
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _free(setting: Setting) -> None:
    gc.collect()
    if setting.device != "cpu":
        import torch

        torch.cuda.empty_cache()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("--groups", nargs="+", required=True)
    parser.add_argument("--scope", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0, help="index of the first line to write")
    parser.add_argument("--wait", action="store_true", help="measure once the input has ended")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
