"""`pagoda serve`: one service in this process, as `python -m pagoda_<service>` runs it."""

import importlib
from enum import StrEnum
from typing import Annotated

import typer


class ServiceName(StrEnum):
    """The services."""

    gateway = "gateway"
    applier = "applier"
    router = "router"
    prefill = "prefill"
    decode = "decode"
    kvstore = "kvstore"


MODULES = {ServiceName.applier: "pagoda_gateway.accounts.usage.applier"}


def serve(service: Annotated[ServiceName, typer.Argument(help="Which service.")]) -> None:
    """Run one service in this process; SIGTERM and Ctrl-C drain and stop it.

    Settings come from PAGODA_* variables; docs/configuration.md lists them.
    """
    module = importlib.import_module(MODULES.get(service, f"pagoda_{service.value}.__main__"))
    raise typer.Exit(module.main())
