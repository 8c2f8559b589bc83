"""Rows of the transfer section as lines of at most 100 columns. Knows rows, nothing else."""

from gpu.harness.rows import BUILD, Row, Rows


def transfer_table(rows: Rows) -> list[str]:
    """One line for each point."""
    return [
        f"{name:<28}{_facts(name, row)}"[:100].rstrip()
        for (group, name), row in rows.items()
        if group != "ceilings" and name != BUILD
    ]


def _facts(name: str, row: Row) -> str:
    if row["status"] != "passed":
        return f"{row['status'].upper()}  {row.get('reason', '')}"
    kind = name.partition(" ")[0]
    return _LINES[kind](row)


def _link(row: Row) -> str:
    fraction = row["copy_fraction_of_copy"]
    copy = "" if fraction is None else f"; copy alone {fraction:.0%}{_missed(row)}"
    goal = "" if row["goal"] is None else f", goal {row['goal']:.0%}"
    return (
        f"{row['num_bytes'] / 2**20:.0f} MiB in {row['p50_ms']:.2f} ms, "
        f"{row['gigabytes_per_second']:.0f} GB/s, "
        f"{row['fraction_of_copy']:.0%} of a copy{copy}{goal}"
    )


def _ttft(row: Row) -> str:
    line = f"first token {row['ttft_ms']:.1f} ms"
    if row["way"] == "none":
        return line
    added = "" if row["added_to_ttft"] is None else f", adds {row['added_to_ttft']:.1%}"
    return (
        f"{line}, KV verified {row['kv_there_ms']:.1f} ms{added}{_missed(row)}, "
        f"goal {row['goal']:.0%}"
    )


def _itl(row: Row) -> str:
    ttft = "" if row["prompt_ttft_ms"] is None else f", TTFT {row['prompt_ttft_ms']:.0f} ms"
    return (
        f"p50 {row['itl_p50_ms']:.2f}, p99 {row['itl_p99_ms']:.2f}, worst "
        f"{row['itl_worst_ms']:.1f} ms, {row['num_prompts']} prompts{ttft}"
    )


def _pool(row: Row) -> str:
    readable = "still readable" if row["is_readable_after_death"] else row["error"]
    return f"{row['kind']}: {row['num_bytes'] / 2**20:.0f} MiB right, a change seen, {readable}"


def _missed(row: Row) -> str:
    return "!" if row["meets_goal"] is False else ""


_LINES = {"link": _link, "ttft": _ttft, "itl": _itl, "pool": _pool}
"""First word of a point's name -> its facts."""
