"""Searches tile shapes of an operator on this host's GPU and writes its tuning file.

A candidate counts only if all cases' checks pass with it. They are checked in processes beside each
other, since compiling takes most of the time, and timed one after another. What a kernel does
without an entry is a candidate too, the first: nothing replaces it that is not faster in the same
run. Never runs while serving.
"""

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.harness.deadline import Deadline
from gpu.harness.environment import describe
from gpu.harness.phase import Phase
from gpu.harness.points import Group, Point, Setting, Subject
from gpu.harness.rows import Row, reason_of
from gpu.harness.timing import Clock, CudaClock
from gpu.kernels.discovery import CASES, bench_files, device_named, load_bench
from gpu.kernels.tunable import Tile, Tunable
from pagoda_kernels.tuning import TileTable, table_of, tuning_file

BUDGET_SECONDS = 0.05
CHECKS_SHARE = 0.6
MAX_WORKERS = 12
SEED = 20_000
POINT = "check"


@dataclass(frozen=True)
class Trial:
    """How one tile did; no seconds where it was wrong, could not run or was not reached.

    Attributes:
        tile: the candidate; None: the kernel's own choice.
        seconds: of each case.
        reason: why there are none.
    """

    tile: Tile | None
    seconds: Sequence[float] = ()
    reason: str = ""

    @property
    def mean_seconds(self) -> float:
        """Geometric mean: twice as fast in one case makes up for half as fast in another."""
        return statistics.geometric_mean(self.seconds)


def tune(op: str, device_name: str, deadline: Deadline) -> int:
    """Tune every `Tunable` of an operator's bench file; returns the exit status."""
    offered = _offered(op, "cuda")
    if not offered:
        print(f"{op}: its bench file offers nothing to tune")
        return 1
    with tempfile.TemporaryDirectory() as name:
        plan = "gpu.kernels.tune:candidate_groups"
        phase = Phase(plan, op, "cuda", SEED, Path(name), lambda rows: None)
        num_workers = max(1, min(MAX_WORKERS, (os.cpu_count() or 1) - 2))
        checked = phase.run_beside_each_other(
            phase.groups(), deadline.share(CHECKS_SHARE), num_workers
        )
    table, clock = table_of(0), CudaClock()
    rows_of = [
        [checked[group_name(tunable, number), POINT] for number in range(len(candidates(tunable)))]
        for tunable in offered
    ]
    work = [num_timings(*pair) for pair in zip(offered, rows_of, strict=True)]
    for position, (tunable, rows) in enumerate(zip(offered, rows_of, strict=True)):
        share = deadline.share(work[position] / max(1, sum(work[position:])))
        print(summary(tunable, search(tunable, table, clock, share, rows)), flush=True)
    provenance = describe(device_name, ["--tune", op])
    measured = {name: provenance[name] for name in ("gpu", "date", "torch", "triton", "commit")}
    path = tuning_file(table.gpu)
    table.write(path, measured)
    print(f"written: {Path(path).name}")
    return 0


def candidate_groups(op: str, device: str) -> list[Group]:
    """Every candidate of an operator, each to be checked."""
    return [
        Group(
            group_name(tunable, number),
            _Nothing,
            (Point(POINT, lambda subject, t=tunable, c=tile: check_row(t, c, table_of(0))),),
        )
        for tunable in _offered(op, device)
        for number, tile in enumerate(candidates(tunable))
    ]


def candidates(tunable: Tunable) -> list[Tile | None]:
    """Return what is tried, the kernel's own choice first."""
    return [None, *tunable.candidates]


def group_name(tunable: Tunable, number: int) -> str:
    """Return the name of a candidate's group."""
    return f"{tunable.op} {tunable.shape} {number}"


def check_row(tunable: Tunable, tile: Tile | None, table: TileTable) -> Row:
    """Check a candidate by all cases; raises what they raise."""
    table.replace(tunable.op, tunable.shape, tile)
    try:
        for case in tunable.cases:
            error = float(case.check(SEED))
            if not error <= case.tolerance:
                return {"status": "wrong", "reason": f"{case.name}: error {error:.1e}"}
    finally:
        table.replace(tunable.op, tunable.shape, None)
    return {"status": "passed"}


def num_timings(tunable: Tunable, checked: Sequence[Row]) -> int:
    """How often a clock is asked: what is left of the time is shared out by that."""
    if checked[0]["status"] != "passed":
        return 0  # see `search`
    return len(tunable.cases) * sum(row["status"] == "passed" for row in checked)


def search(
    tunable: Tunable, table: TileTable, clock: Clock, deadline: Deadline, checked: Sequence[Row]
) -> Sequence[Trial]:
    """Time what passed until the deadline and leave the fastest tile in the table.

    None if the kernel's own choice is the fastest; what was there if that was not even checked.

    Args:
        tunable: the candidates.
        table: of the device.
        clock: of the device.
        deadline: of all of them.
        checked: row of each candidate.
    """
    if checked[0]["status"] != "passed":
        return []  # an earlier run's tile is worth more than one that was compared with nothing
    trials = []
    for tile, row in zip(candidates(tunable), checked, strict=True):
        if deadline.has_passed:
            break
        if row["status"] != "passed":
            trials.append(Trial(tile, reason=str(row.get("reason", row["status"]))))
            continue
        table.replace(tunable.op, tunable.shape, tile)
        trials.append(_timed(tunable, tile, clock))
    best = fastest(trials)
    if trials:
        is_known = bool(trials[0].seconds)
        table.replace(tunable.op, tunable.shape, best.tile if best and is_known else None)
    return trials


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """The trial of least time, None if no tile was right."""
    timed = [trial for trial in trials if trial.seconds]
    return min(timed, key=lambda trial: trial.mean_seconds, default=None)


def summary(tunable: Tunable, trials: Sequence[Trial]) -> str:
    """One line for people, and one for each of the better tiles."""
    num_offered = len(candidates(tunable))
    start = f"{tunable.op} {tunable.shape}: {len(trials)} of {num_offered} tried, "
    timed = sorted((t for t in trials if t.seconds), key=lambda trial: trial.mean_seconds)
    if not timed:
        return start + "none right; " + (trials[-1].reason if trials else "out of time")
    lines = [start + f"best {timed[0].tile}, us in {', '.join(c.name for c in tunable.cases)}:"]
    for trial in timed[:6]:
        lines.append(f"  {trial.tile}: {', '.join(f'{1e6 * s:.1f}' for s in trial.seconds)}")
    return "\n".join(lines)


class _Nothing(Subject):
    """Candidates share nothing: cases allocate what they need."""

    def __init__(self, setting: Setting) -> None:
        self.facts: Row = {}


def _offered(op: str, device: str) -> list[Tunable]:
    bench = load_bench(bench_files(CASES, [op])[0])
    return list(bench.tunables(device_named(device))) if hasattr(bench, "tunables") else []


def _timed(tunable: Tunable, tile: Tile | None, clock: Clock) -> Trial:
    try:
        return Trial(tile, [clock.measure(c.build(), BUDGET_SECONDS).p50 for c in tunable.cases])
    except Exception as problem:
        clock.check_device()
        return Trial(tile, reason=reason_of(problem))
