"""Draws the spans of one request: a tree with a timeline, and the router's comparison."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from rich.table import Table
from rich.text import Text

from pagoda_cli.trace.span import Span
from pagoda_cli.trace.span_search import ROOT_NAME

BAR_CELLS = 28
CANDIDATES_ATTRIBUTE = "pagoda.route.candidates"
OUTCOME_ATTRIBUTE = "pagoda.route.outcome"
_MAX_VALUE_CHARS = 48
_SHOWN_PREFIXES = ("pagoda.", "gen_ai.usage.", "gen_ai.response.finish_reasons", "error.")
# Equal on every span of the request, or of no use to a reader; `--json` has them.
_HIDDEN = frozenset(
    {
        "pagoda.request_id",
        "pagoda.epoch",
        "pagoda.lease_id",
        CANDIDATES_ATTRIBUTE,
    }
)
_CANDIDATE_COLUMNS = (
    ("decode", "decode"),
    ("prefill", "prefill"),
    ("device blocks", "device_blocks"),
    ("fetch blocks", "fetch_blocks"),
    ("miss tokens", "miss_tokens"),
    ("queue ms", "queue_ms"),
    ("fetch ms", "fetch_ms"),
    ("compute ms", "compute_ms"),
    ("transfer ms", "transfer_ms"),
    ("TTFT ms", "ttft_ms"),
    ("TPOT ms", "tpot_ms"),
    ("held up ms", "held_up_ms"),
    ("cost ms", "cost_ms"),
)


def request_root(spans: Sequence[Span]) -> Span:
    """Return the span that the others hang on."""
    return next((span for span in spans if span.name == ROOT_NAME), spans[0])


def walk(spans: Sequence[Span]) -> Iterator[tuple[int, Span, bool]]:
    """Yield (depth, span, is_orphan) in tree order, siblings by start.

    A span whose parent was never written hangs on the root and is an orphan.
    """
    root = request_root(spans)
    known = {span.span_id for span in spans}
    children: dict[str, list[tuple[Span, bool]]] = defaultdict(list)
    for span in spans:
        if span is not root:
            is_orphan = span.parent_span_id not in known
            parent_id = root.span_id if is_orphan else span.parent_span_id
            children[parent_id].append((span, is_orphan))

    def below(span: Span, depth: int, is_orphan: bool) -> Iterator[tuple[int, Span, bool]]:
        yield depth, span, is_orphan
        for child, child_is_orphan in children.pop(span.span_id, []):
            yield from below(child, depth + 1, child_is_orphan)

    yield from below(root, 0, False)


def tree_table(spans: Sequence[Span]) -> Table:
    """Return the tree as a table: offsets and durations in milliseconds from the root's start."""
    root = request_root(spans)
    total = max(max(span.end for span in spans) - root.start, 1e-9)
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("span", no_wrap=True)
    table.add_column("service", no_wrap=True)
    table.add_column("start ms", justify="right", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("", width=BAR_CELLS, no_wrap=True)
    table.add_column("attributes", overflow="fold")
    for depth, span, is_orphan in walk(spans):
        start, end = (span.start - root.start) / total, (span.end - root.start) / total
        table.add_row(
            Text("  " * depth + span.name + (" (parent missing)" if is_orphan else "")),
            Text(span.service),
            f"{1e3 * (span.start - root.start):.2f}",
            f"{1e3 * (span.end - span.start):.2f}",
            Text(bar(start, end), style="red" if span.status == "ERROR" else "cyan"),
            Text(describe(span)),
        )
    return table


def bar(start: float, end: float, *, cells: int = BAR_CELLS) -> str:
    """Return a bar from `start` to `end`, both fractions of the whole; at least one cell wide."""
    first = min(max(int(start * cells), 0), cells - 1)
    last = min(max(round(end * cells), first + 1), cells)
    return " " * first + "█" * (last - first) + " " * (cells - last)


def describe(span: Span) -> str:
    """Return the attributes worth a look, short names, in the order their service gave them."""
    shown = []
    for name, value in span.attributes.items():
        if not name.startswith(_SHOWN_PREFIXES) or name in _HIDDEN:
            continue
        if value in ("", [], None) or (name == "pagoda.sequence_index" and value == 0):
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        short = name.removeprefix("pagoda.").removeprefix("gen_ai.")
        shown.append(f"{short}={text[:_MAX_VALUE_CHARS]}")
    return "  ".join(shown)


def candidates(spans: Sequence[Span]) -> list[tuple[Span, list[dict[str, Any]]]]:
    """Return each routing decision of the request with the plans it compared, best first.

    The router writes the plans; `is_chosen` is added: the first one, if the request was placed.
    """
    decisions = []
    for span in spans:
        raw = span.attributes.get(CANDIDATES_ATTRIBUTE)
        if not raw:
            continue
        is_placed = span.attributes.get(OUTCOME_ATTRIBUTE) == "placed"
        plans = [
            {**plan, "is_chosen": is_placed and number == 0}
            for number, plan in enumerate(orjson.loads(raw))
        ]
        decisions.append((span, plans))
    return decisions


def candidates_table(span: Span, plans: Sequence[dict[str, Any]]) -> Table:
    """Return one decision as a table; the chosen plan is marked."""
    table = Table(
        title=f"{span.name} compared {len(plans)} plan{'' if len(plans) == 1 else 's'}",
        title_justify="left",
        box=None,
        padding=(0, 1),
        header_style="bold",
    )
    table.add_column("")
    for title, key in _CANDIDATE_COLUMNS:
        is_text = key in ("decode", "prefill")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for plan in plans:
        is_chosen = plan["is_chosen"]
        cells = [_cell(key, plan.get(key)) for _, key in _CANDIDATE_COLUMNS]
        table.add_row(
            "→" if is_chosen else "",
            *(Text(cell) for cell in cells),
            Text(str(plan.get("reason", "") or ("chosen" if is_chosen else ""))),
            style="bold" if is_chosen else "",
        )
    return table


def _cell(key: str, value: Any) -> str:
    if key == "prefill" and not value:
        return "(local)"
    if value is None:
        return ""  # ruled out before it was costed
    return f"{value:.1f}" if key.endswith("_ms") else str(value)
