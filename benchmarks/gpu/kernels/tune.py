"""Searches tile shapes of an operator on this host's GPU and writes its tuning file.

A candidate counts only if its case's check passes with it. Never runs while serving.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.harness.deadline import Deadline
from gpu.harness.environment import describe
from gpu.harness.rows import reason_of
from gpu.harness.timing import Clock, CudaClock
from gpu.kernels.discovery import CASES, bench_files, device_named, load_bench
from gpu.kernels.tunable import Tile, Tunable
from pagoda_kernels.tuning import TileTable, table_of, tuning_file

BUDGET_SECONDS = 0.2
SEED = 20_000


@dataclass(frozen=True)
class Trial:
    """How one tile did; seconds is None where it was wrong or could not run."""

    tile: Tile
    seconds: float | None
    reason: str = ""


def tune(op: str, device_name: str, deadline: Deadline) -> int:
    """Tune every `Tunable` of an operator's bench file; returns the exit status."""
    bench = load_bench(bench_files(CASES, [op])[0])
    if not hasattr(bench, "tunables"):
        print(f"{op}: its bench file offers nothing to tune")
        return 1
    table, clock = table_of(0), CudaClock()
    offered = bench.tunables(device_named("cuda"))
    for position, tunable in enumerate(offered):
        share = deadline.share(1 / (len(offered) - position))
        trials = search(tunable, table, clock, share)
        print(summary(tunable, trials))
    provenance = describe(device_name, ["--tune", op])
    measured = {name: provenance[name] for name in ("gpu", "date", "torch", "triton", "commit")}
    path = tuning_file(table.gpu)
    table.write(path, measured)
    print(f"written: {Path(path).name}")
    return 0


def search(tunable: Tunable, table: TileTable, clock: Clock, deadline: Deadline) -> Sequence[Trial]:
    """Try the candidates until the deadline and leave the fastest right one in the table."""
    trials = []
    for tile in tunable.candidates:
        if deadline.has_passed:
            break
        table.replace(tunable.op, tunable.shape, tile)
        trials.append(_tried(tunable, tile, clock))
    best = fastest(trials)
    table.replace(tunable.op, tunable.shape, None if best is None else best.tile)
    return trials


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """The trial of least time, None if no tile was right."""
    right = [trial for trial in trials if trial.seconds is not None]
    seconds: Callable[[Trial], float] = lambda trial: trial.seconds or 0.0  # noqa: E731
    return min(right, key=seconds, default=None)


def summary(tunable: Tunable, trials: Sequence[Trial]) -> str:
    """One line for people."""
    best = fastest(trials)
    start = f"{tunable.op} {tunable.shape}: {len(trials)} of {len(tunable.candidates)} tried, "
    if best is None:
        return start + "none right; " + (trials[-1].reason if trials else "out of time")
    return start + f"best {best.tile} at {1e6 * (best.seconds or 0):.1f} us"


def _tried(tunable: Tunable, tile: Tile, clock: Clock) -> Trial:
    case = tunable.case
    try:
        error = case.check(SEED)
        if not error <= case.tolerance:
            return Trial(tile, None, f"error {error:.1e}")
        return Trial(tile, clock.measure(case.build(), BUDGET_SECONDS).p50)
    except Exception as problem:  # too much shared memory, no such tile on this GPU
        clock.check_device()
        return Trial(tile, None, reason_of(problem))
