"""`pagoda prices`: set, list and withdraw what models cost."""

from datetime import datetime
from typing import Annotated, Any

import typer

from pagoda_cli.admin.client import AdminClient, AsJson, Url, as_json, path_of
from pagoda_cli.admin.numbers import amount_up_to
from pagoda_cli.admin.tables import amount, moment, print_table, unix_seconds

MAX_AMOUNT = 1_000_000  # for a million tokens
_RATES = ("input", "cached_device", "cached_cpu", "cached_nvme", "output")

_rate = amount_up_to(MAX_AMOUNT)

app = typer.Typer(no_args_is_help=True)
CachedAmount = Annotated[
    int | None,
    typer.Option(parser=_rate, metavar="AMOUNT", show_default=False, help="Default: as --input."),
]


@app.command("set")
def set_price(
    model: Annotated[str, typer.Argument(help="Its own name, no alias.")],
    input_: Annotated[
        int,
        typer.Option("--input", parser=_rate, metavar="AMOUNT", help="For a million tokens."),
    ],
    output: Annotated[
        int, typer.Option(parser=_rate, metavar="AMOUNT", help="For a million tokens.")
    ],
    cached_device: CachedAmount = None,
    cached_cpu: CachedAmount = None,
    cached_nvme: CachedAmount = None,
    batch_discount: Annotated[int, typer.Option(min=0, max=100, help="Percent.")] = 0,
    valid_from: Annotated[
        datetime | None, typer.Option(help="UTC. Default: now.", show_default=False)
    ] = None,
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """Set what a model's tokens cost from a moment on; what was used before keeps its price."""
    body: dict[str, Any] = {
        "model": model,
        "input_micros": input_,
        "cached_device_micros": cached_device,
        "cached_cpu_micros": cached_cpu,
        "cached_nvme_micros": cached_nvme,
        "output_micros": output,
        "batch_discount_percent": batch_discount,
    }
    if valid_from is not None:
        body["valid_from"] = unix_seconds(valid_from)
    made = AdminClient(url).ask("POST", "prices", body)
    if json_output:
        typer.echo(as_json(made))
        return
    typer.echo(f"{made['id']} of {model} is valid from {moment(made['valid_from'])} UTC")


@app.command("list")
def list_prices(
    model: Annotated[str, typer.Option(help="Only this model's.")] = "",
    url: Url = "",
    json_output: AsJson = False,
) -> None:
    """List prices, past and coming ones too; for a million tokens."""
    prices = list(AdminClient(url).each("prices", model=model))
    prices.sort(key=lambda price: (price["model"], price["valid_from"]))
    if json_output:
        typer.echo(as_json(prices))
        return
    print_table(
        ("ID", "MODEL", "VALID FROM", "INPUT", "DEVICE", "CPU", "NVME", "OUTPUT", "BATCH"),
        (
            (
                price["id"],
                price["model"],
                moment(price["valid_from"]),
                *(amount(price[f"{rate}_micros"]) for rate in _RATES),
                f"-{price['batch_discount_percent']}%",
            )
            for price in prices
        ),
    )


@app.command()
def withdraw(
    price_id: Annotated[str, typer.Argument(metavar="ID", help="Such as price-0123456789abcdef.")],
    url: Url = "",
) -> None:
    """Take back a price that has not begun."""
    price = AdminClient(url).ask("DELETE", path_of("prices", price_id))
    typer.echo(f"{price['id']} of {price['model']} is withdrawn")
