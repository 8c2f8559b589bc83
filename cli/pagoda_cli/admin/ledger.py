"""`pagoda ledger`: what was used, and what was left open."""

from typing import Annotated

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _ledger() -> None:
    """Keep `reconcile` a command of its own while it is the only one."""


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
