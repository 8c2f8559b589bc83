"""`pagoda keys` and its like, run against a gateway of this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from pagoda_cli.commands import make_app
from pagoda_runtime.messaging.bus import Bus
from support.running_gateway import Running, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for
from support.tiny_tokenizer import write_model_folder

ADMIN_KEY = "admin-key-0123456789"


@contextlib.asynccontextmanager
async def admin_gateway(folder: Path) -> AsyncIterator[Running]:
    """Start a gateway with an administration, and all that it needs."""
    model = write_model_folder(folder / "tiny")
    with nats_server(folder) as nats:
        common = settings_for(nats, home=folder)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model, ScriptedWorker(bus), admin_key=ADMIN_KEY
            ) as gateway,
        ):
            yield gateway


async def pagoda(running: Running, *arguments: str, key: str = ADMIN_KEY, code: int = 0) -> Any:
    """Run the command in a thread: the gateway's loop is the test's."""
    environ = {
        "PAGODA_HOME": "none",
        "OPENAI_BASE_URL": running.url,
        "PAGODA_GATEWAY_ADMIN_KEY": key,
    }
    result = await asyncio.to_thread(
        CliRunner().invoke, make_app(arguments), list(arguments), env=environ
    )
    assert result.exit_code == code, result.output
    return result
