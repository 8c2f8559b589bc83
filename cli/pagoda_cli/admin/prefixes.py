"""`pagoda prefixes`: why prompts were not in the cache, and what to do about it."""

import urllib.parse
from typing import Annotated, Any

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json
from pagoda_cli.admin.tables import print_table

MAX_TEXT_CHARS = 28


def prefixes(
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    hours: Annotated[float, typer.Option(min=0.1, max=168.0, help="How far back.")] = 1.0,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Show why prompts were not in the cache, the costliest reasons first, and what to do."""
    query = {"hours": str(hours), **({"tenant": tenant} if tenant else {})}
    answer = AdminClient(url).ask("GET", f"prefixes?{urllib.parse.urlencode(query)}")
    if json_output:
        typer.echo(as_json(answer["data"]))
        return
    if not answer["data"]:
        typer.echo("no prompt missed a prefix that it could have had")
        return
    print_table(
        ("TENANT", "MODEL", "CLASS", "WHERE", "EXAMPLE", "REQUESTS", "TOKENS LOST/HOUR"),
        (
            (
                miss["tenant"],
                miss["model"],
                miss["class"],
                _place(miss),
                _example(miss["example"]),
                str(miss["requests"]),
                f"{miss['lost_tokens_per_hour']:,.0f}",
            )
            for miss in answer["data"]
        ),
    )
    typer.echo("")
    for kind, advice in {miss["class"]: miss["advice"] for miss in answer["data"]}.items():
        typer.echo(f"{kind}: {advice}")


def _place(miss: dict[str, Any]) -> str:
    place = miss["place"] or "-"
    return f"{place}, {miss['role']}" if miss["role"] else place


def _example(example: dict[str, Any]) -> str:
    if example["text"] == example["earlier_text"]:
        return "-"
    return f"{_short(example['earlier_text'])} -> {_short(example['text'])}"


def _short(text: str) -> str:
    shown = ascii(text)[1:-1]  # a terminal obeys what is in it
    return shown if len(shown) <= MAX_TEXT_CHARS else f"{shown[: MAX_TEXT_CHARS - 3]}..."
