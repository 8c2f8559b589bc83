"""The kernels' part of `make check-gpu`: ceilings, correctness, timings, baselines, in that order.

Nothing is timed that is not right. Knows phases and budgets. Knows nothing of single kernels.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ceilings import Ceilings
from deadline import Deadline
from device_tests import run_device_tests
from discovery import HERE, Unloadable, bench_files, declared_cases, device_named
from gpu_section import Context, SectionResult
from report import kernel_table
from supervise import DIED, Rows, run_phase

TESTS_SHARE, CHECKS_SHARE, TIMINGS_SHARE = 0.45, 0.5, 0.6
"""Of what is left when the phase begins; baselines get the rest, the compiled ones last."""

CEILINGS_SECONDS = 60.0
MAX_WORKERS = 12
WORKER_BYTES = 10 << 30
"""Of device memory: the largest checks, with what a process takes."""


@dataclass(frozen=True)
class KernelSection:
    """Every `bench_<op>.py` of a folder, on one device.

    Attributes:
        bench: the folder.
        device: cuda, or host for tests of this module.
    """

    bench: Path = HERE
    device: str = "cuda"
    name: str = "kernels"

    def run(self, context: Context) -> SectionResult:
        """See `Section`."""
        common = ["--bench", str(self.bench), "--device", self.device]
        common += ["--seed", str(context.seed), "--ops", *context.ops]
        cases = self._declared(context.ops)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ceilings = _measured_ceilings(common, folder / "ceilings.json")
            tests = self._tests(context)
            rows: Rows = {key: {"status": "out of time"} for key in cases}

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
            _add_checks(rows, common, self._num_workers(), context.deadline, save)
            print("timing what is right", file=sys.stderr, flush=True)
            _add_timings(rows, common, folder, context.deadline, save)
        failures, notes = _judged(tests, rows)
        return SectionResult(data(), kernel_table(ceilings, tests, rows), failures, notes)

    def _declared(self, ops: Sequence[str]) -> list[tuple[str, str]]:
        files = bench_files(self.bench, ops)
        return [
            (case.op, "" if isinstance(case, Unloadable) else case.name)
            for case in declared_cases(files, device_named(self.device))
        ]

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


def _measured_ceilings(common: list[str], path: Path) -> Ceilings:
    print("measuring the ceilings", file=sys.stderr, flush=True)
    command = [
        sys.executable,
        str(HERE / "case_worker.py"),
        "ceilings",
        "--output",
        str(path),
        *common,
    ]
    subprocess.run(command, check=True, timeout=CEILINGS_SECONDS)
    return Ceilings.read(path)


def _add_checks(
    rows: Rows,
    common: list[str],
    num_workers: int,
    deadline: Deadline,
    save: Callable[[], None],
) -> None:
    def take(found: Rows) -> None:
        rows.update(found)
        save()

    share = deadline.share(CHECKS_SHARE)
    run_phase("check", arguments=common, num_workers=num_workers, deadline=share, on_rows=take)


def _add_timings(
    rows: Rows, common: list[str], folder: Path, deadline: Deadline, save: Callable[[], None]
) -> None:
    only = folder / "only.json"
    only.write_text(
        json.dumps([key for key, row in rows.items() if row["status"] == "passed"]),
        encoding="utf-8",
    )
    arguments = [*common, "--only", str(only), "--ceilings", str(folder / "ceilings.json")]
    for phase, kind in (("time", "timing"), ("baselines", "baselines"), ("compiled", "baselines")):

        def take(found: Rows, kind: str = kind) -> None:
            for key, row in found.items():
                if key == DIED:
                    rows[key] = row
                else:
                    rows[key].setdefault(kind, {}).update(row)
            save()

        share = deadline.share(TIMINGS_SHARE) if phase == "time" else deadline
        run_phase(phase, arguments=arguments, num_workers=1, deadline=share, on_rows=take)


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
        elif row["status"] == "out of time":
            notes.append(f"{op} {name}: not checked, out of time")
        elif row.get("timing", {}).get("status") == "crashed":
            failures.append(f"{op} {name}: while timed: {row['timing']['reason']}")
        elif "timing" not in row:
            notes.append(f"{op} {name}: not timed, out of time")
    return failures, notes
