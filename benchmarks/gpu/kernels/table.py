"""Rows of the kernels' section as lines of at most 100 columns. Knows rows, nothing else."""

from typing import Any

from gpu.harness.ceilings import Ceilings
from gpu.harness.rows import Row, Rows


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
