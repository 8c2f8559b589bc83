"""`pagoda organisations`: create, list and change organisations."""

from typing import Annotated

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json, path_of
from pagoda_cli.admin.tables import moment, print_table
from pagoda_cli.admin.tier_option import NewTier, given

app = typer.Typer(no_args_is_help=True)
Organisation = Annotated[str, typer.Argument(metavar="ID", help="Such as acme.")]


@app.command()
def create(
    organisation: Organisation,
    tier: Annotated[str, typer.Option(help="Limits of all its tenants together.")] = "",
    label: Annotated[str, typer.Option(help="What it is.")] = "",
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Create an organisation."""
    body = {"id": organisation, "tier": tier or None, "label": label}
    made = AdminClient(url).ask("POST", "organisations", body)
    typer.echo(as_json(made) if json_output else f"organisation {made['id']} is created")


@app.command()
def update(organisation: Organisation, tier: NewTier, url: Url = "") -> None:
    """Give an organisation another tier, or none."""
    body = {"tier": given(tier)}
    AdminClient(url).ask("PATCH", path_of("organisations", organisation), body)
    typer.echo(f"organisation {organisation} has the tier {tier}")


@app.command("list")
def list_organisations(url: Url = "", json_output: AsJson = False) -> None:
    """List organisations."""
    organisations = list(AdminClient(url).each("organisations"))
    if json_output:
        typer.echo(as_json(organisations))
        return
    print_table(
        ("ID", "TIER", "CREATED", "LABEL"),
        (
            (found["id"], found["tier"] or "-", moment(found["created_at"]), found["label"])
            for found in organisations
        ),
    )
