"""The kernels' part of `make check-gpu`: ceilings, correctness, timings, baselines, in that order.

Nothing is timed that is not right. Knows phases and budgets. Knows nothing of single kernels.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu.harness.ceilings import Ceilings
from gpu.harness.deadline import Deadline
from gpu.harness.phase import Phase
from gpu.harness.points import CEILINGS_FILE, Group
from gpu.harness.rows import BUILD, OnRows, Row, Rows
from gpu.harness.section import Context, SectionResult
from gpu.kernels.device_tests import run_device_tests
from gpu.kernels.discovery import CASES
from gpu.kernels.plan import POINT, SEPARATOR
from gpu.kernels.table import kernel_table

TESTS_SHARE, CHECKS_SHARE, TIMINGS_SHARE = 0.45, 0.5, 0.6
"""Of what is left when the phase begins; baselines get the rest, the compiled ones last."""

MAX_WORKERS = 12
WORKER_BYTES = 10 << 30
"""Of device memory: the largest checks, with what a process takes."""


@dataclass(frozen=True)
class KernelSection:
    """Every `bench_<op>.py` of a folder, on one device.

    Attributes:
        bench: the folder.
        device: cuda, or cpu for tests of this module.
    """

    bench: Path = CASES
    device: str = "cuda"
    name: str = "kernels"

    def run(self, context: Context) -> SectionResult:
        """See `Section`."""
        with tempfile.TemporaryDirectory() as name:

            def phase(plan: str, take: OnRows = lambda found: None) -> Phase:
                plan = f"gpu.kernels.plan:{plan}"
                folder = str(self.bench)
                return Phase(plan, folder, self.device, context.seed, Path(name), take)

            ceilings = _measured_ceilings(phase("ceilings_groups"), context.deadline)
            tests = self._tests(context)
            rows: Rows = {
                _key(group): {"status": "out of time"}
                for group in _of_ops(phase("check_groups").groups(), context.ops)
            }

            def data() -> dict[str, Any]:
                return {
                    "ceilings": asdict(ceilings),
                    "seed": context.seed,
                    "tests": tests,
                    "cases": [{"op": op, "name": case, **row} for (op, case), row in rows.items()],
                }

            def save() -> None:
                context.save(data())

            save()
            print("checking every case", file=sys.stderr, flush=True)
            share = context.deadline.share(CHECKS_SHARE)
            self._add("check_groups", "", rows, phase, self._num_workers(), share, save)
            print("timing what is right", file=sys.stderr, flush=True)
            share = context.deadline.share(TIMINGS_SHARE)
            self._add("time_groups", "timing", rows, phase, 1, share, save)
            for plan in ("baseline_groups", "compiled_groups"):
                self._add(plan, "baselines", rows, phase, 1, context.deadline, save)
        failures, notes = _judged(tests, rows)
        return SectionResult(data(), kernel_table(ceilings, tests, rows), failures, notes)

    def _add(
        self,
        plan: str,
        kind: str,
        rows: Rows,
        phase: Callable[[str, OnRows], Phase],
        num_workers: int,
        deadline: Deadline,
        save: Callable[[], None],
    ) -> None:
        """Run a plan and keep its rows: as those of the cases, or as a kind of facts in them."""

        def take(found: Rows) -> None:
            for key, row in _by_case(found).items():
                if not kind:
                    rows[key] = row
                elif row["status"] != "out of time":
                    rows[key].setdefault(kind, {}).update(_without_status(row))
            save()

        run = phase(plan, take)
        wanted = [
            group
            for group in run.groups()
            if _key(group) in rows and (not kind or rows[_key(group)]["status"] == "passed")
        ]
        take(run.run_beside_each_other(wanted, deadline, num_workers))

    def _tests(self, context: Context) -> dict[str, Any]:
        if context.skip_tests:
            return {"status": "not run", "reason": "left out by the caller"}
        print("running tests/kernels on the device", file=sys.stderr, flush=True)
        return run_device_tests(context.deadline.share(TESTS_SHARE), self._num_workers())

    def _num_workers(self) -> int:
        num_workers = min(MAX_WORKERS, (os.cpu_count() or 1) - 2)
        if self.device == "cuda":
            import torch

            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            num_workers = min(num_workers, total // WORKER_BYTES)
        return max(1, num_workers)


def _measured_ceilings(phase: Phase, deadline: Deadline) -> Ceilings:
    print("measuring the ceilings", file=sys.stderr, flush=True)
    (row,) = phase.run_in_turn(phase.groups(), deadline).values()
    if row["status"] != "passed":
        raise RuntimeError(f"ceilings: {row['status']}: {row.get('reason', '')}")
    return Ceilings.read(phase.folder / CEILINGS_FILE)


def _of_ops(groups: Sequence[Group], ops: Sequence[str]) -> list[Group]:
    return [group for group in groups if not ops or _key(group)[0] in ops]


def _key(group: Group) -> tuple[str, str]:
    op, _, name = group.name.partition(SEPARATOR)
    return op, name


def _by_case(found: Rows) -> Rows:
    """Rows by operator and case; a bench file that cannot be loaded is a case that crashed."""
    by_case: Rows = {}
    for wanted in (POINT, BUILD):
        for (group, point), row in found.items():
            if point == wanted and (point == POINT or row["status"] == "crashed"):
                op, _, name = group.partition(SEPARATOR)
                by_case[op, name] = row
    return by_case


def _without_status(row: Row) -> Row:
    dropped = {"took_seconds"} | ({"status"} if row["status"] == "passed" else set())
    return {key: value for key, value in row.items() if key not in dropped}


def _judged(tests: dict[str, Any], rows: Rows) -> tuple[list[str], list[str]]:
    failures, notes = [], []
    for failure in tests.get("failures", []):
        failures.append(f"{failure['test']}: {failure['reason']}")
    for reason in tests.get("processes_that_ended_badly", []):
        failures.append(f"a test process ended badly: {reason}")
    if tests["status"] in ("not run", "incomplete"):
        notes.append(f"device tests {tests['status']}: {tests.get('reason') or 'out of time'}")
    for (op, name), row in rows.items():
        if row["status"] == "wrong":
            failures.append(
                f"{op} {name}: error {row['error']:.1e} > {row['tolerance']:.1e}, not timed "
                f"(--seed {row['seed']})"
            )
        elif row["status"] == "crashed":
            failures.append(f"{op} {name}: {row.get('reason', 'crashed')}")
        elif row["status"] == "left out":
            failures.append(row["reason"])  # its process did not even start
        elif row["status"] == "out of time":
            notes.append(f"{op} {name}: not checked, out of time")
        elif "status" in row.get("timing", {}):
            failures.append(f"{op} {name}: while timed: {row['timing']['reason']}")
        elif "timing" not in row:
            notes.append(f"{op} {name}: not timed, out of time")
    return list(dict.fromkeys(failures)), notes
