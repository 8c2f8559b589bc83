"""Shows results: a table for people, JSON for programs. Never a latency without the failures."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from pagoda_cli.bench.config import BenchConfig
from pagoda_cli.bench.provenance import Provenance
from pagoda_cli.bench.results import Results
from pagoda_cli.bench.statistics import Distribution
from pagoda_cli.console import widen
from pagoda_cli.endpoint import Endpoint

SCHEMA_VERSION = 1
MAX_FAIR_START_LAG_MS = 20.0


def document(
    config: BenchConfig, endpoint: Endpoint, results: Results, origin: Provenance
) -> dict[str, Any]:
    """Return everything about one run as plain types."""
    settings = asdict(config)
    settings["trace"] = str(config.trace) if config.trace else None
    settings["tokenizer"] = str(config.tokenizer) if config.tokenizer else None
    return {
        "schema_version": SCHEMA_VERSION,
        "provenance": origin.as_dict(),
        "endpoint": {"base_url": endpoint.base_url, "model": endpoint.model},
        "config": settings,
        "results": results.as_dict(),
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` to `path`, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def print_results(console: Console, results: Results) -> None:
    """Print the tables of one run."""
    counts, latencies = _counts(results), _latencies(results)
    widen(console, counts, latencies)
    console.print(counts, highlight=False)
    if results.num_ok:
        console.print(
            f"\nmilliseconds, {results.num_ok} complete requests "
            f"({results.failure_ratio:.1%} failed are not in here)",
            highlight=False,
        )
        console.print(latencies)
    for example in results.failure_examples:
        console.print(f"failed: {example}", style="red", markup=False, highlight=False)
    if results.max_start_lag_ms > MAX_FAIR_START_LAG_MS:
        console.print(
            f"requests left up to {results.max_start_lag_ms:.0f} ms late: this client was too slow "
            "for the rate; the lag is inside TTFT and E2E",
            style="yellow",
        )


def _counts(results: Results) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    failures = ", ".join(f"{kind} {count}" for kind, count in results.failures.items())
    rows = [
        ("requests", f"{results.num_ok} complete, {results.num_failed} failed"),
        (
            "failed",
            f"{results.failure_ratio:.1%}, of which shed {results.shed_ratio:.1%}"
            + (f" ({failures})" if failures else ""),
        ),
        ("duration", f"{results.duration_seconds:.2f} s"),
        ("throughput", f"{results.requests_per_second:.3f} requests/s"),
        (
            "tokens/s",
            f"{results.output_tokens_per_second:.1f} output, "
            f"{results.total_tokens_per_second:.1f} in total",
        ),
        (
            "tokens",
            f"{results.num_prompt_tokens} prompt ({results.num_cached_tokens} cached), "
            f"{results.num_output_tokens} output, {results.tokens_per_event:.2f} per event",
        ),
    ]
    if results.num_interrupted:
        rows.insert(1, ("interrupted", f"{results.num_interrupted} in flight, not counted"))
    if goodput := results.goodput:
        objectives = [
            f"{name} <= {value:g} ms"
            for name, value in (("TTFT", goodput.slo_ttft_ms), ("TPOT", goodput.slo_tpot_ms))
            if value is not None
        ]
        rows.append(
            (
                "goodput",
                f"{goodput.requests_per_second:.3f} requests/s, {goodput.ratio:.1%} of requests "
                f"({' and '.join(objectives)}; failed ones are misses)",
            )
        )
    for row in rows:
        table.add_row(*row)
    return table


def _latencies(results: Results) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("mean", "p50", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    for name, values in (
        ("TTFT", results.ttft_ms),
        ("TPOT", results.tpot_ms),
        ("ITL", results.itl_ms),
        ("E2E", results.e2e_ms),
    ):
        table.add_row(name, *_cells(values))
    return table


def _cells(values: Distribution | None) -> list[str]:
    if values is None:
        return ["-"] * 5
    columns = (values.mean, values.p50, values.p95, values.p99, values.max)
    return [f"{value:.2f}" for value in columns]
