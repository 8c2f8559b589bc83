"""`pagoda ledger`: what tenants have used, as sums, as receipts, and whether these are whole."""

import csv
import sys
import urllib.parse
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from pagoda_cli.admin.client import PAGE, AdminClient, AsJson, Url, as_json, path_of
from pagoda_cli.admin.tables import amount, print_table, unix_seconds

app = typer.Typer(no_args_is_help=True)

Tenant = Annotated[str, typer.Option(help="Only this tenant.")]
Since = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="The first UTC day that counts."),
]
Until = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="The first UTC day that does not."),
]
_SUMS = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
_COLUMNS = (
    "tenant", "number", "request_id", "api_key_id", "model", "endpoint", "service_tier", "opened",
    "closed", "outcome", "prompt_tokens", "cached_device_tokens", "cached_cpu_tokens",
    "cached_nvme_tokens", "output_tokens", "attempts", "price_id", "cost_micros", "hash",
)  # fmt: skip


@app.command()
def balance(
    tenant: Tenant = "",
    since: Since = None,
    until: Until = None,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Show what tenants have used and what it cost, ever or within some UTC days."""
    client = AdminClient(url)
    _check(client, tenant, since, until)
    balances = list(client.each("balances", tenant=tenant, since=_day(since), until=_day(until)))
    if json_output:
        typer.echo(as_json(balances))
        return
    print_table(
        ("TENANT", "REQUESTS", "PROMPT TOKENS", "CACHED", "OUTPUT TOKENS", "COST"),
        (
            (each["id"], *(str(each[name]) for name in _SUMS), amount(each["cost_micros"]))
            for each in balances
        ),
    )


@app.command()
def export(
    as_csv: Annotated[
        bool, typer.Option("--csv", help="As CSV; without it each line is a receipt as JSON.")
    ] = False,
    tenant: Tenant = "",
    since: Since = None,
    until: Until = None,
    url: Url = "",
) -> None:
    """Write receipts to stdout, page by page, however many there are."""
    client = AdminClient(url)
    _check(client, tenant, since, until)
    receipts = _receipts(client, tenant, since, until)
    if as_csv:
        _write_csv(receipts)
        return
    for receipt in receipts:
        typer.echo(as_json(receipt, indented=False))


@app.command()
def verify(tenant: Tenant = "", url: Url = "", json_output: AsJson = False) -> None:
    """Check that no receipt was changed, removed or added; exit with 1 if one was."""
    client = AdminClient(url)
    checks = [_whole_check(client, name) for name in _tenants(client, tenant)]
    if json_output:
        typer.echo(as_json(checks))
    else:
        for check in checks:
            _show(check)
    if any(check["break"] for check in checks):
        raise typer.Exit(1)


@app.command()
def reconcile(
    gone_seconds: Annotated[
        float, typer.Option(min=5.0, help="Gateways that nobody has heard of for so long.")
    ] = 30.0,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Close requests that dead gateways left open, from what workers published."""
    body = {"gone_seconds": gone_seconds}
    answer = AdminClient(url).ask("POST", "ledger/reconcile", body)
    if json_output:
        typer.echo(as_json(answer))
        return
    typer.echo(
        f"{answer['reconciled']} requests closed from workers' records, {answer['lost']} lost "
        f"(no worker knew them), {answer['open']} open"
    )
    if answer.get("unbegun"):  # a gateway of before says nothing of them
        typer.echo(
            f"{answer['unbegun']} that ended are billed to nobody: the ledger does not know how "
            "they began, as one does not that was restored from a copy while they ran"
        )


def _check(
    client: AdminClient, tenant: str, since: datetime | None, until: datetime | None
) -> None:
    """Refuse a tenant that there never was, and days of which none counts."""
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter(
            f"{_day(until)} is the first day that does not count, so it comes after --since",
            param_hint="--until",
        )
    if tenant and not any(client.each("balances", tenant=tenant)):
        client.ask("GET", path_of("tenants", tenant))


def _tenants(client: AdminClient, tenant: str) -> list[str]:
    """Return whoever has, or had, receipts; deleted tenants too."""
    return [tenant] if tenant else [chain["id"] for chain in client.each("chains")]


def _receipts(
    client: AdminClient, tenant: str, since: datetime | None, until: datetime | None
) -> Iterator[dict[str, Any]]:
    within = {"since": _seconds(since), "until": _seconds(until)}
    for name in _tenants(client, tenant):
        yield from client.each("receipts", id_name="request_id", tenant=name, **within)


def _write_csv(receipts: Iterable[dict[str, Any]]) -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(_COLUMNS)
    for receipt in receipts:
        cached, cost = receipt["cached_tokens"], receipt["cost"]
        values = receipt | {
            **{f"cached_{tier}_tokens": number for tier, number in cached.items()},
            "opened": f"{receipt['opened']:.3f}",
            "closed": f"{receipt['closed']:.3f}",
            "price_id": cost["price_id"] or "",
            "cost_micros": cost["micros"],
        }
        table.writerow([values[name] for name in _COLUMNS])


def _whole_check(client: AdminClient, tenant: str) -> dict[str, Any]:
    """Check one chain part by part: it may be of any length."""
    num_checked = cost = 0
    query: dict[str, Any] = {"limit": PAGE}
    while True:
        path = f"{path_of('chains', tenant)}?{urllib.parse.urlencode(query)}"
        check = client.ask("GET", path)
        num_checked += check["checked"]
        cost += check["cost_micros"]
        if check["is_end"]:
            return {**check, "checked": num_checked, "cost_micros": cost}
        query |= {"after_number": check["last_number"], "after_hash": check["last_hash"]}


def _show(check: dict[str, Any]) -> None:
    what = f"tenant {check['tenant']}: {check['checked']} receipts"
    if check["break"]:
        typer.echo(f"{what} are whole, then: {check['break']}")
        return
    cost = amount(check["cost_micros"])
    typer.echo(f"{what} up to number {check['last_number']} are whole, cost {cost}")


def _day(day: datetime | None) -> str:
    return "" if day is None else day.strftime("%Y-%m-%d")


def _seconds(day: datetime | None) -> str:
    return "" if day is None else str(unix_seconds(day))
