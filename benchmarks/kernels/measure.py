"""One case as one row of the results: first whether it is right, then how fast.

Knows cases, clocks and ceilings. Knows nothing of processes, files or tables.
"""

import gc
from collections.abc import Callable
from typing import Any

from case import Case, Launch
from ceilings import Ceilings
from timing import Clock, Timing

BUDGET_SECONDS = 0.4
BASELINE_BUDGET_SECONDS = 0.25
COMPILED = ("compile", "flex")
"""Baselines that `torch.compile` takes seconds for."""

Row = dict[str, Any]


def check_row(case: Case, seed: int, clock: Clock) -> Row:
    """Run the case's check; ``status`` is passed or wrong. Raises what the check raises."""
    error = float(case.check(seed))
    clock.check_device()
    # Not `error > tolerance`: a NaN must not pass.
    status = "passed" if error <= case.tolerance else "wrong"
    return {"status": status, "error": error, "tolerance": case.tolerance, "seed": seed}


def time_row(case: Case, ceilings: Ceilings, clock: Clock) -> Row:
    """Time the case; the caller has checked it. Raises what the launch raises."""
    timing = _timed(case.build, clock, BUDGET_SECONDS)
    row = {**_facts(timing), "num_bytes": case.num_bytes, "num_flops": case.num_flops}
    if case.num_bytes:
        row["gigabytes_per_second"] = case.num_bytes / timing.p50 / 1e9
    if case.num_flops:
        row["teraflops_per_second"] = case.num_flops / timing.p50 / 1e12
    floor = ceilings.floor_seconds(case.num_bytes, case.num_flops)
    row["floor_us"] = floor * 1e6
    row["fraction_of_ceiling"] = floor / timing.p50
    row["goal"] = case.goal
    row["meets_goal"] = None if case.goal is None else floor / timing.p50 >= case.goal
    return row


def baseline_rows(case: Case, clock: Clock, *, are_compiled: bool) -> Row:
    """Time the baselines of that kind; one that raises is reported with its reason."""
    rows: Row = {}
    for name, build in case.baselines.items():
        if (name in COMPILED) != are_compiled:
            continue
        try:
            rows[name] = _facts(_timed(build, clock, BASELINE_BUDGET_SECONDS))
        except Exception as error:
            clock.check_device()
            rows[name] = {"unavailable": reason_of(error)}
    return rows


def reason_of(error: BaseException) -> str:
    """First lines of what went wrong, short enough for a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")


def _timed(build: Callable[[], Launch], clock: Clock, budget_seconds: float) -> Timing:
    launch = build()
    try:
        return clock.measure(launch, budget_seconds)
    finally:
        del launch
        gc.collect()


def _facts(timing: Timing) -> Row:
    return {
        "p20_us": timing.p20 * 1e6,
        "p50_us": timing.p50 * 1e6,
        "p80_us": timing.p80 * 1e6,
        "num_repetitions": timing.num_repetitions,
    }
