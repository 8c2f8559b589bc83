"""Results for people and for later: a short table, one JSON file per section, a notes file.

Knows rows. Knows nothing of how they came about.
"""

import json
import math
from pathlib import Path
from typing import Any

from ceilings import Ceilings
from supervise import Row, Rows

NOTES = """# Notes on {gpu}

Numbers: `{section}.json` beside this file, written by `make check-gpu`. One entry per surprise or
change; a prediction is written down before the run.

| date | kernel and shape | prediction | measured | why |
| --- | --- | --- | --- | --- |
"""

PREDICTIONS = """# Predictions of the {section} section on {gpu}

Of the run of {date}, commit {commit}; numbers in `{section}.json` beside this file. What was
predicted follows from shapes and this run's ceilings; why the rest differs is for a person to say.

| what | predicted | measured | why |
| --- | --- | --- | --- |
"""


def kernel_table(ceilings: Ceilings, tests: dict[str, Any], rows: Rows) -> list[str]:
    """Lines of at most 100 columns: one per case, the baselines relative to it."""
    lines = [
        f"ceilings: copy {ceilings.copy_bytes_per_second / 1e9:.0f} GB/s, "
        f"bf16 matmul {ceilings.matmul_flops_per_second / 1e12:.0f} TFLOP/s, "
        f"empty launch {ceilings.launch_seconds * 1e6:.1f} us",
        f"tests: {_tests(tests)}",
        f"{'operator':<18}{'case':<34}{'p50 us':>9}{'rate':>13}{'of max':>8}{'goal':>6}  others",
    ]
    return lines + [_case_line(op, name, row) for (op, name), row in sorted(rows.items())]


def write_results(
    folder: Path, section: str, provenance: dict[str, Any], data: dict[str, Any]
) -> Path:
    """Write ``<section>.json`` and, where there is none, the notes; returns the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{section}.json"
    text = json.dumps(_finite({**provenance, **data}), indent=1, allow_nan=False)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)  # whoever ends this process finds one state or the other
    notes = folder / "notes.md"
    if not notes.exists():
        notes.write_text(NOTES.format(gpu=provenance["gpu"], section=section), encoding="utf-8")
    return path


def write_predictions(
    folder: Path, section: str, provenance: dict[str, Any], rows: list[tuple[str, str, str]]
) -> None:
    """Write ``<section>-notes.md``, a row for each prediction, unless it is there."""
    path = folder / f"{section}-notes.md"
    if not rows or path.exists():
        return
    lines = [f"| {what} | {predicted} | {measured} | |" for what, predicted, measured in rows]
    head = PREDICTIONS.format(section=section, **provenance)
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become words."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _tests(tests: dict[str, Any]) -> str:
    if "passed" not in tests:
        return f"{tests['status']} ({tests.get('reason', '')})"
    counts = ", ".join(f"{tests[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
    late = f", {tests['not_run']} not run" if tests["not_run"] else ""
    return f"{counts}{late} in {tests['seconds']:.0f} s"


def _case_line(op: str, name: str, row: Row) -> str:
    start = f"{op:<18}{name:<34}"
    timing = row.get("timing", {})
    if "p50_us" not in timing:
        status = row["status"] if row["status"] != "passed" else timing.get("status", "not timed")
        return f"{start}{status.upper():>9}"
    if row_rate := timing.get("teraflops_per_second"):
        rate = f"{row_rate:.0f} TFLOP/s"
    else:
        rate = f"{timing.get('gigabytes_per_second', 0):.0f} GB/s"
    goal = "" if timing["goal"] is None else f"{timing['goal']:.0%}"
    missed = "" if timing["meets_goal"] in (None, True) else "!"
    fraction = f"{timing['fraction_of_ceiling']:.0%}{missed}"
    others = ", ".join(
        f"{other} {facts['p50_us'] / timing['p50_us']:.2f}x"
        for other, facts in row.get("baselines", {}).items()
        if isinstance(facts, dict) and "p50_us" in facts
    )
    return f"{start}{timing['p50_us']:>9.1f}{rate:>13}{fraction:>8}{goal:>6}  {others}".rstrip()
