"""Results for people and for later: a JSON file per section, notes, sentences on what is wrong.

Knows rows. Knows nothing of how they came about.
"""

import json
import math
from pathlib import Path
from typing import Any

from gpu.harness.rows import BUILD, Row, Rows

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


_PREDICTED = ("ttft_", "kv_there_", "itl_p50_", "itl_p99_")
"""What rows predict beside their p50."""


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


def failures_and_notes(rows: Rows) -> tuple[list[str], list[str]]:
    """Sentences on what is wrong, and on what was left out."""
    failures, notes = [], []
    num_late = 0
    for (group, name), row in rows.items():
        where = f"{group}, {name}"
        match row["status"]:
            case "wrong":
                failures.append(f"{where}: {_what_is_wrong(row)}")
            case "crashed":
                failures.append(f"{where}: {row.get('reason', 'crashed')}")
            case "not available":
                notes.append(f"{where}: {row['reason']}")
            case "left out" if name == BUILD:
                notes.append(f"{group}: left out: {row['reason']}")
            case "out of time":
                num_late += 1
    if num_late:
        notes.append(f"{num_late} points were not reached in time, see the file")
    return failures, notes


def predictions(rows: Rows) -> list[tuple[str, str, str]]:
    """Return (what, predicted, measured) of every point that was predicted."""
    found = []
    for (group, name), row in rows.items():
        for kind in ("", *_PREDICTED):
            predicted, measured = row.get(f"predicted_{kind}ms"), row.get(f"{kind or 'p50_'}ms")
            if predicted is not None and measured is not None:
                what = " ".join(filter(None, (group, name, kind.rstrip("_"))))
                found.append((what, f"{predicted:.2f} ms", f"{measured:.2f} ms"))
    return found


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become words."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _what_is_wrong(row: Row) -> str:
    if "num_bad_blocks" in row:
        return f"{row['num_bad_blocks']} blocks whose digest does not match"
    if "is_equal" in row:
        return f"blocks equal: {row['is_equal']}, a change seen: {row['finds_change']}"
    if "num_tokens" in row and "error" not in row:
        return f"{row['num_equal']} of {row['num_tokens']} tokens up to the first that differs"
    return f"log-probabilities differ by {row['error']:.1e} > {row['tolerance']:.1e}"
