"""A comparison as one SVG: a row for each metric, a column for each load, a bar for each server."""

from html import escape

from driving.spread import Spread

from peers.comparison import METRICS, Comparison

# Okabe and Ito's, told apart by the colour-blind too; in the order of the servers.
COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#009E73", "#56B4E9", "#CC79A7", "#999999")
CELL_WIDTH, BAR_HEIGHT, GAP, LEFT, TOP = 230, 16, 30, 112, 104
LEGEND_WIDTH = 150
LABEL_WIDTH = 52  # beside a bar, for its number


def svg(comparison: Comparison, title: str) -> str:
    """Return the picture; a bar is the median, the line through its end the least and greatest."""
    servers, loads = comparison.servers(), comparison.loads()
    cell_height = len(servers) * BAR_HEIGHT + GAP
    width = LEFT + max(len(loads) * CELL_WIDTH, len(servers) * LEGEND_WIDTH) + 16
    height = TOP + len(METRICS) * cell_height
    remark = "; ".join(comparison.remarks())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(12, 20, title, size=14),
    ]
    if remark:
        parts.append(text(12, 38, f"No measurement: {remark}", colour="#b00020"))
    for number, server in enumerate(servers):
        x = LEFT + number * LEGEND_WIDTH
        parts.append(square(x, 50, COLOURS[number % len(COLOURS)]))
        parts.append(text(x + 16, 60, server, size=12))
    for column, load in enumerate(loads):
        parts.append(text(LEFT + column * CELL_WIDTH, TOP - 16, load, size=13))
    for row, (metric, unit, digits, more_is_better) in enumerate(METRICS):
        top = TOP + row * cell_height
        parts.append(text(12, top + 12, unit, size=12))
        parts.append(text(12, top + 28, "more is better" if more_is_better else "less is better"))
        for column, load in enumerate(loads):
            spreads = {name: comparison.spread(load, name, metric) for name in servers}
            left = LEFT + column * CELL_WIDTH
            parts += bars(left, top, spreads, digits=digits)
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(left: float, top: float, spreads: dict[str, Spread | None], *, digits: int) -> list[str]:
    """Return the bars of one metric under one load, all on the scale of the greatest."""
    greatest = max((spread.max for spread in spreads.values() if spread), default=0.0) or 1.0
    scale = (CELL_WIDTH - LABEL_WIDTH - 12) / greatest
    parts = []
    for number, (server, spread) in enumerate(spreads.items()):
        y = top + number * BAR_HEIGHT
        colour = COLOURS[number % len(COLOURS)]
        if spread is None:
            parts.append(text(left, y + 11, "-"))
            continue
        length, middle = spread.median * scale, y + BAR_HEIGHT / 2 - 1
        parts.append(
            f'<rect x="{left:g}" y="{y:g}" width="{length:.1f}" height="{BAR_HEIGHT - 3}" '
            f'fill="{colour}"><title>{escape(server)}: {spread.text(digits)}</title></rect>'
        )
        low, high = left + spread.min * scale, left + spread.max * scale
        parts.append(
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:g}" y2="{middle:g}" '
            'stroke="#222222" stroke-width="1"/>'
        )
        parts.append(text(high + 4, y + 11, f"{spread.median:.{digits}f}"))
    return parts


def square(x: float, y: float, colour: str) -> str:
    """Return a sample of a colour."""
    return f'<rect x="{x:g}" y="{y:g}" width="11" height="11" fill="{colour}"/>'


def text(x: float, y: float, content: str, *, size: int = 11, colour: str = "#222222") -> str:
    """Return one line of text."""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"'
    return f"<text {place}>{escape(content)}</text>"
