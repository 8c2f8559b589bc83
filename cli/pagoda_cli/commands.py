"""The commands of `pagoda`. Only the one asked for is imported: `--help` stays fast.

All but `up` and `serve` need this member only; the services come with the extra `up`.
"""

import importlib
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

# name -> "module:function", or a Typer in its place, and the line that `pagoda --help` shows
COMMANDS = {
    "up": ("pagoda_cli.up.command:up", "Start the whole system on this machine; Ctrl-C stops it."),
    "serve": ("pagoda_cli.serve:serve", "Run one service in this process."),
    "chat": ("pagoda_cli.chat.command:chat", "Talk to a model, or ask one thing from a script."),
    "trace": ("pagoda_cli.trace.command:trace", "Show where one request's time went."),
    "keys": ("pagoda_cli.admin.keys:app", "Create, list, rotate and revoke API keys."),
    "tenants": ("pagoda_cli.admin.tenants:app", "Create and list tenants."),
    "prefixes": (
        "pagoda_cli.admin.prefixes:prefixes",
        "Show why prompts were not in the cache, and what that cost.",
    ),
    "prices": ("pagoda_cli.admin.prices:app", "Set, list and withdraw what models cost."),
    "ledger": ("pagoda_cli.admin.ledger:app", "Show, export and verify what tenants have used."),
    "organisations": ("pagoda_cli.admin.organisations:app", "Create and list organisations."),
    "tiers": ("pagoda_cli.admin.tiers:app", "Create, list and change sets of limits."),
    "bench": ("pagoda_cli.bench.command:bench", "Measure a running system."),
}


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the app for these arguments: the first word's command, and the others by name only."""
    app = typer.Typer(
        name="pagoda",
        help="Serve large language models from small processes.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    wanted = next((word for word in arguments if not word.startswith("-")), "")
    for name, (target, summary) in COMMANDS.items():
        loaded = _load(target) if name == wanted else _placeholder
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name, help=summary)
        else:
            app.command(name, short_help=summary)(loaded)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"pagoda {metadata.version('pagoda-cli')}")
        raise typer.Exit


def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def _placeholder() -> None:
    raise AssertionError("the first word decides which command is loaded")


def _load(target: str) -> Callable[..., Any] | typer.Typer:
    module, _, function = target.partition(":")
    loaded: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(module), function)
    return loaded
