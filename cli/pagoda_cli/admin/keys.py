"""`pagoda keys`: create, list, rotate and revoke API keys."""

import time
from typing import Annotated, Any

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json, path_of
from pagoda_cli.admin.numbers import number_up_to
from pagoda_cli.admin.tables import moment, print_table
from pagoda_cli.admin.tier_option import NewTier, given

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400
MAX_DAYS = 36_500
MAX_OVERLAP_HOURS = 90 * 24

app = typer.Typer(no_args_is_help=True)
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Such as key-0123456789abcdef.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose key.")],
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    models: Annotated[str, typer.Option(help="Models it may use, by commas. Default: all.")] = "",
    days: Annotated[
        float,
        typer.Option(
            parser=number_up_to(MAX_DAYS), metavar="DAYS", help="It expires then; 0: never."
        ),
    ] = 0.0,
    tier: Annotated[str, typer.Option(help="Limits of its own. Default: its tenant's alone.")] = "",
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Create a key and print it: nothing can show it again."""
    body: dict[str, Any] = {"tenant": tenant, "label": label, "tier": tier or None}
    if models:
        body["models"] = [name.strip() for name in models.split(",")]
    if days:
        body["expires_at"] = int(time.time() + days * DAY_SECONDS)
    _show_new(AdminClient(url).ask("POST", "keys", body), json_output=json_output)


@app.command("list")
def list_keys(
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """List keys, revoked ones too; of each its beginning."""
    keys = list(AdminClient(url).each("keys", tenant=tenant))
    if json_output:
        typer.echo(as_json(keys))
        return
    print_table(
        ("ID", "TENANT", "TIER", "KEY", "STATUS", "EXPIRES", "LAST USED", "MODELS", "LABEL"),
        (
            (
                key["id"],
                key["tenant"],
                key["tier"] or "-",
                f"{key['prefix']}..." if key["prefix"] else "-",
                key["status"],
                moment(key["expires_at"]),
                moment(key["last_used_at"]),
                ", ".join(key["models"]) if key["models"] else "all",
                key["label"],
            )
            for key in keys
        ),
    )


@app.command()
def rotate(
    key_id: KeyId,
    overlap_hours: Annotated[
        float,
        typer.Option(
            parser=number_up_to(MAX_OVERLAP_HOURS),
            metavar="HOURS",
            help="So long the old key goes on.",
        ),
    ] = 24.0,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Create a key that takes another's place, and print it; for a while both work."""
    body = {"overlap_seconds": round(overlap_hours * HOUR_SECONDS)}
    answer = AdminClient(url).ask("POST", f"{path_of('keys', key_id)}/rotate", body)
    _show_new(answer, json_output=json_output)


@app.command()
def update(key_id: KeyId, tier: NewTier, url: Url = "") -> None:
    """Give a key another tier, or none."""
    AdminClient(url).ask("PATCH", path_of("keys", key_id), {"tier": given(tier)})
    typer.echo(f"{key_id} has the tier {tier}")


@app.command()
def revoke(key_id: KeyId, url: Url = "") -> None:
    """Make a key useless, on every gateway and for ever."""
    key = AdminClient(url).ask("DELETE", path_of("keys", key_id))
    typer.echo(f"{key['id']} of tenant {key['tenant']} is revoked")


def _show_new(key: dict[str, Any], *, json_output: bool) -> None:
    if json_output:
        typer.echo(as_json(key))
        return
    expiry = f"expires {moment(key['expires_at'])} UTC" if key["expires_at"] else "never expires"
    typer.echo(f"{key['id']} of tenant {key['tenant']}, {expiry}; shown only now:", err=True)
    typer.echo(key["key"])
