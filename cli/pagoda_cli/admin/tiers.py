"""`pagoda tiers`: named sets of limits, which keys, tenants and organisations have."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json, path_of
from pagoda_cli.admin.numbers import MICROS, amount_up_to
from pagoda_cli.admin.tables import print_table

MAX_BUDGET = 9_000_000_000  # its millionths are an integer that JSON can say
MAX_NUMBER = 2**53 - 1

app = typer.Typer(no_args_is_help=True)
Tier = Annotated[str, typer.Argument(metavar="ID", help="Such as gold.")]
Limit = Annotated[int | None, typer.Option(min=0, max=MAX_NUMBER, help="0: no limit.")]
Budget = Annotated[
    int | None,
    typer.Option(
        parser=amount_up_to(MAX_BUDGET),
        metavar="AMOUNT",
        show_default=False,
        help="In the unit that prices are in; 0: no limit.",
    ),
]

Weight = Annotated[
    float | None,
    typer.Option(min=0.01, max=100.0, help="Of a tenant's share of a worker, beside 1 of others."),
]


class OnLimit(StrEnum):
    """What becomes of a request over a limit."""

    reject = "reject"
    queue = "queue"


@app.command()
def create(
    tier: Tier,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    concurrent_requests: Limit = None,
    daily_budget: Budget = None,
    monthly_budget: Budget = None,
    on_limit: OnLimit = OnLimit.reject,
    weight: Weight = None,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Create a tier."""
    limits = _limits(
        requests_per_minute, tokens_per_minute, concurrent_requests, daily_budget, monthly_budget
    )
    body = {"id": tier, **limits, "on_limit": on_limit.value, **_weight(weight)}
    _show(AdminClient(url).ask("POST", "tiers", body), json_output=json_output)


@app.command()
def update(
    tier: Tier,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    concurrent_requests: Limit = None,
    daily_budget: Budget = None,
    monthly_budget: Budget = None,
    on_limit: Annotated[OnLimit | None, typer.Option()] = None,
    weight: Weight = None,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Change what is given; it holds for requests from now on."""
    body: dict[str, Any] = _limits(
        requests_per_minute, tokens_per_minute, concurrent_requests, daily_budget, monthly_budget
    )
    if on_limit is not None:
        body["on_limit"] = on_limit.value
    body |= _weight(weight)
    _show(AdminClient(url).ask("PATCH", path_of("tiers", tier), body), json_output=json_output)


@app.command("list")
def list_tiers(url: Url = "", json_output: AsJson = False) -> None:
    """List tiers."""
    tiers = list(AdminClient(url).each("tiers"))
    if json_output:
        typer.echo(as_json(tiers))
        return
    print_table(
        (
            "ID",
            "REQUESTS/MIN",
            "TOKENS/MIN",
            "CONCURRENT",
            "BUDGET/DAY",
            "BUDGET/MONTH",
            "OVER",
            "WEIGHT",
        ),
        (
            (
                tier["id"],
                _number(tier["requests_per_minute"]),
                _number(tier["tokens_per_minute"]),
                _number(tier["concurrent_requests"]),
                _money(tier["daily_budget_micros"]),
                _money(tier["monthly_budget_micros"]),
                tier["on_limit"],
                f"{tier['weight']:g}",
            )
            for tier in tiers
        ),
    )


@app.command()
def delete(tier: Tier, url: Url = "") -> None:
    """Delete a tier that nobody has."""
    AdminClient(url).ask("DELETE", path_of("tiers", tier))
    typer.echo(f"tier {tier} is deleted")


def _limits(
    requests: int | None, tokens: int | None, running: int | None, day: int | None,
    month: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the limits that are given; no limit is null."""
    given = {
        "requests_per_minute": requests,
        "tokens_per_minute": tokens,
        "concurrent_requests": running,
        "daily_budget_micros": day,
        "monthly_budget_micros": month,
    }
    return {name: value or None for name, value in given.items() if value is not None}


def _weight(weight: float | None) -> dict[str, float]:
    return {} if weight is None else {"weight": weight}


def _show(tier: dict[str, Any], *, json_output: bool) -> None:
    typer.echo(as_json(tier) if json_output else f"tier {tier['id']} is stored")


def _number(limit: int | None) -> str:
    return "-" if limit is None else str(limit)


def _money(micros: int | None) -> str:
    return "-" if micros is None else f"{micros / MICROS:.6f}".rstrip("0").rstrip(".")
