"""The plans of the kernels: a case is a group of one point, first its check, then its time.

Knows cases, clocks and ceilings. Knows nothing of processes, files or tables.
"""

import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu.harness.ceilings import Ceilings
from gpu.harness.ceilings_group import ceilings_group
from gpu.harness.points import Group, Point, Setting, Subject
from gpu.harness.rows import Row, reason_of
from gpu.harness.timing import CLOCKS, Clock, Timing
from gpu.kernels.case import Case, Launch
from gpu.kernels.discovery import Unloadable, bench_files, declared_cases, device_named

BUDGET_SECONDS = 0.4
BASELINE_BUDGET_SECONDS = 0.25
COMPILED = ("compile", "flex")
"""Baselines that `torch.compile` takes seconds for."""

POINT = "case"
"""Name of the one point of a group."""

SEPARATOR = ": "
"""Between operator and case in the name of a group."""


class CaseSubject(Subject):
    """One case; it allocates nothing."""

    def __init__(self, setting: Setting, case: Case | Unloadable) -> None:
        if isinstance(case, Unloadable):
            raise case.error
        self.setting = setting
        self.case = case
        self.clock = _clock(setting.device)
        self.facts: Row = {}


def ceilings_groups(folder: str, device: str) -> list[Group]:
    """What rows are judged by."""
    return [ceilings_group("all")]


def check_groups(folder: str, device: str) -> list[Group]:
    """Whether each case is right, on data of its own."""
    return [
        _group(case, lambda s, i=index: check_row(s.case, s.setting.seed + i, s.clock))
        for index, case in enumerate(_declared(folder, device))
    ]


def time_groups(folder: str, device: str) -> list[Group]:
    """How long each case takes."""
    run: Callable[[CaseSubject], Row] = lambda s: time_row(s.case, s.setting.ceilings, s.clock)  # noqa: E731
    return [_group(case, run) for case in _declared(folder, device)]


def baseline_groups(folder: str, device: str, *, are_compiled: bool = False) -> list[Group]:
    """What a user would call otherwise, without what `torch.compile` takes seconds for."""

    def run(subject: CaseSubject) -> Row:
        return baseline_rows(subject.case, subject.clock, are_compiled=are_compiled)

    return [_group(case, run) for case in _declared(folder, device)]


compiled_groups = functools.partial(baseline_groups, are_compiled=True)
"""The other baselines."""


def _declared(folder: str, device: str) -> Iterator[Case | Unloadable]:
    return declared_cases(bench_files(Path(folder)), device_named(device))


def _group(case: Case | Unloadable, run: Callable[[CaseSubject], Row]) -> Group:
    seconds = 0.0 if isinstance(case, Unloadable) else case.seconds
    return Group(
        f"{case.op}{SEPARATOR}{case.name}",
        lambda setting: CaseSubject(setting, case),
        (Point(POINT, run, seconds=seconds),),
    )


@functools.cache
def _clock(device: str) -> Clock:
    return CLOCKS[device]()


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
