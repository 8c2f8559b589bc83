"""The `pagoda trace` command: where the time of one request went, and why it ran where it ran."""

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from pagoda_cli.console import widen
from pagoda_cli.endpoint import resolve_home
from pagoda_cli.trace.jaeger import Jaeger
from pagoda_cli.trace.span import Span
from pagoda_cli.trace.span_files import SpanFiles
from pagoda_cli.trace.span_search import TraceNotFoundError, find_request
from pagoda_cli.trace.span_tree import candidates, candidates_table, request_root, tree_table


def trace(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="x-request-id, the id of the response (chatcmpl-..., cmpl-...), trace id",
        ),
    ],
    home: Annotated[
        Path | None, typer.Option(file_okay=False, help="Default: PAGODA_HOME, then .pagoda")
    ] = None,
    jaeger: Annotated[
        str, typer.Option(metavar="URL", help="Read Jaeger's query API there, no files.")
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every plan the router compared.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the spans as JSON.")] = False,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for spans that are not written yet.")
    ] = 3.0,
) -> None:
    """Show one request's trace: every stage, its service, its time and what it found.

    Reads the span files of a stack on this machine ($PAGODA_HOME/traces), or Jaeger. Offsets count
    from when the gateway took the request; stages of different processes may overlap.
    """
    source = Jaeger(jaeger) if jaeger else SpanFiles(resolve_home(home) / "traces")
    try:
        spans = find_request(source, request_id, wait_seconds=wait)
    except TraceNotFoundError as error:
        typer.echo(f"pagoda trace: {error}", err=True)
        raise typer.Exit(1) from None
    if json_output:
        typer.echo(_json(spans))
        return
    console = Console(highlight=False)
    root, tree = request_root(spans), tree_table(spans)
    widen(console, tree)
    console.print(
        f"request {root.attributes.get('pagoda.request_id', '?')}, trace {root.trace_id}, "
        f"{len(spans)} spans, {1e3 * (root.end - root.start):.1f} ms",
        markup=False,
    )
    console.print(tree)
    if explain:
        _explain(console, spans)


def _explain(console: Console, spans: list[Span]) -> None:
    decisions = candidates(spans)
    if not decisions:
        console.print("no routing decision was written with this request", style="yellow")
    for span, plans in decisions:
        table = candidates_table(span, plans)
        widen(console, table)
        console.print()
        console.print(table)


def _json(spans: list[Span]) -> str:
    root = request_root(spans)
    content = {
        "trace_id": root.trace_id,
        "request_id": root.attributes.get("pagoda.request_id", ""),
        "spans": [span.as_record() for span in spans],
        "candidates": [
            {"span_id": span.span_id, "plans": plans} for span, plans in candidates(spans)
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()
