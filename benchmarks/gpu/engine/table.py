"""Rows of the engine's section as lines of at most 100 columns. Knows rows, nothing else."""

from gpu.harness.rows import BUILD, Row, Rows

TRANSFORMERS_GOAL = 3.0
GAP_GOAL_US = 50.0


def engine_table(rows: Rows) -> list[str]:
    """One line for each measured point, measured beside predicted; golden tokens in one line."""
    lines = [_golden_line(rows)]
    lines += [
        f"{'model':<23}{'case':<25}{'p50 ms':>9}{'predicted':>10}{'of floor':>10}{'goal':>6}  notes"
    ]
    for (group, name), row in rows.items():
        if not _is_golden(group) and name != BUILD:
            lines.append(f"{group:<23}{name:<25}{_numbers(group, name, row, rows)}")
    return [line[:100].rstrip() for line in lines]


def transformers_ratio(group: str, row: Row, rows: Rows) -> float | None:
    """How many times longer `transformers` takes for a step than the engine, if both are known."""
    ours = rows.get((group, f"decode b{row['batch']} ctx{row['context']}"), {})
    return row["p50_ms"] / ours["p50_ms"] if "p50_ms" in ours else None


def _is_golden(group: str) -> bool:
    return group.startswith(("tiny ", "width "))


def _golden_line(rows: Rows) -> str:
    golden = [row["status"] for (group, name), row in rows.items() if _is_golden(group)]
    counts = {status: golden.count(status) for status in dict.fromkeys(golden)}
    return "golden tokens: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def _numbers(group: str, name: str, row: Row, rows: Rows) -> str:
    if row["status"] != "passed":
        return f"{row['status'].upper():>9}  {row.get('reason', '')}"[:52]
    kind = name.partition(" ")[0]
    if kind not in _LINES:
        return ""
    measured, predicted, of_floor, goal, notes = _LINES[kind](group, row, rows)
    return f"{measured:>9}{predicted:>10}{of_floor:>10}{goal:>6}  {notes}"


Cells = tuple[str, str, str, str, str]


def _decode(group: str, row: Row, rows: Rows) -> Cells:
    missed = "!" if row["meets_goal"] is False else ""
    gap = f"gap {row['gap_us']:.0f} us" + ("!" if row["gap_us"] > GAP_GOAL_US else "")
    notes = [gap] + ([] if row["is_graph"] else ["eager"])
    goal = "" if row["goal"] is None else f"{row['goal']:.2f}x"
    return (
        f"{row['p50_ms']:.2f}",
        f"{row['predicted_ms']:.2f}",
        f"{row['over_floor']:.2f}x{missed}",
        goal,
        ", ".join(notes),
    )


def _prefill(group: str, row: Row, rows: Rows) -> Cells:
    missed = "!" if row["meets_goal"] is False else ""
    goal = "" if row["goal"] is None else f"{row['goal']:.0%}"
    return (
        f"{row['p50_ms']:.1f}",
        f"{row['predicted_ms']:.1f}",
        f"{row['fraction_of_matmul']:.0%}{missed}",
        goal,
        f"{row['tokens_per_second'] / 1e3:.1f}k tok/s",
    )


def _kernels(group: str, row: Row, rows: Rows) -> Cells:
    longest = row["kernels"][0]
    return (
        f"{row['busy_ms']:.2f}",
        f"{row['predicted_ms']:.2f}",
        f"{row['over_floor']:.2f}x",
        "",
        f"{longest['ms']:.2f} {longest['name']}",
    )


def _transformers(group: str, row: Row, rows: Rows) -> Cells:
    ratio = transformers_ratio(group, row, rows)
    if ratio is None:
        return f"{row['p50_ms']:.2f}", "", "", "", ""
    is_judged = row["batch"] > 1
    missed = "!" if is_judged and ratio < TRANSFORMERS_GOAL else ""
    goal = f"{TRANSFORMERS_GOAL:.0f}x" if is_judged else ""
    return f"{row['p50_ms']:.2f}", "", f"{ratio:.2f}x{missed}", goal, "of the engine's time"


def _sampling(group: str, row: Row, rows: Rows) -> Cells:
    notes = f"top-p adds {row['added_ms'] * 1e3:.0f} us to {row['greedy_p50_ms']:.2f} ms"
    return f"{row['top_p_p50_ms']:.2f}", "", "", "", notes


def _capture(group: str, row: Row, rows: Rows) -> Cells:
    notes = f"{row['num_graphs']} graphs, {row['graph_bytes'] / 2**20:.0f} MiB"
    return f"{row['seconds'] * 1e3:.0f}", "", "", "", notes


def _ready(group: str, row: Row, rows: Rows) -> Cells:
    missed = "" if row["meets_goal"] else "!"
    notes = (
        f"{row['num_bytes'] / 1e9:.1f} GB; {row['predicted_full_seconds']:.0f} s{missed} "
        f"for {row['full_bytes'] / 1e9:.0f} GB, goal {row['goal']:.0f} s"
    )
    return f"{row['ready_seconds'] * 1e3:.0f}", "", "", "", notes


_LINES = {
    "decode": _decode,
    "prefill": _prefill,
    "transformers": _transformers,
    "sampling": _sampling,
    "capture": _capture,
    "kernels": _kernels,
    "ready": _ready,
}
"""First word of a point's name -> its measured and predicted time, distance from the floor, goal,
and notes."""
