"""`pagoda tenants`: create, list and change tenants."""

from typing import Annotated

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json, path_of
from pagoda_cli.admin.tables import moment, print_table
from pagoda_cli.admin.tier_option import NewTier, given

app = typer.Typer(no_args_is_help=True)
Tenant = Annotated[str, typer.Argument(metavar="ID", help="Such as acme-prod.")]


@app.command()
def create(
    tenant: Tenant,
    organisation: Annotated[str, typer.Option(help="Whose tenant; it exists.")] = "default",
    tier: Annotated[str, typer.Option(help="Its limits. Default: none.")] = "",
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Create a tenant."""
    body = {"id": tenant, "organisation": organisation, "tier": tier or None, "label": label}
    made = AdminClient(url).ask("POST", "tenants", body)
    if json_output:
        typer.echo(as_json(made))
        return
    typer.echo(f"tenant {made['id']} of organisation {made['organisation']} is created")


@app.command()
def update(tenant: Tenant, tier: NewTier, url: Url = "") -> None:
    """Give a tenant another tier, or none."""
    AdminClient(url).ask("PATCH", path_of("tenants", tenant), {"tier": given(tier)})
    typer.echo(f"tenant {tenant} has the tier {tier}")


@app.command("list")
def list_tenants(
    organisation: Annotated[str, typer.Option(help="Only this organisation's.")] = "",
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """List tenants."""
    tenants = list(AdminClient(url).each("tenants", organisation=organisation))
    if json_output:
        typer.echo(as_json(tenants))
        return
    print_table(
        ("ID", "ORGANISATION", "TIER", "CREATED", "LABEL"),
        (
            (
                tenant["id"],
                tenant["organisation"],
                tenant["tier"] or "-",
                moment(tenant["created_at"]),
                tenant["label"],
            )
            for tenant in tenants
        ),
    )
