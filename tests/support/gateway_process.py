"""A gateway as a process of its own: started, found ready, killed."""

import asyncio
import os
import sys
from pathlib import Path

import httpx

from pagoda_runtime.configuration.settings import CommonSettings
from support.running_gateway import API_KEY

START_SECONDS = 90.0


def gateway_environment(common: CommonSettings, model_folder: Path, port: int) -> dict[str, str]:
    """Variables of a gateway that serves `tiny` and keeps its ledger in `common.home`."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PAGODA_")},
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PAGODA_HOME": str(common.home),
        "PAGODA_MODEL": str(model_folder),
        "PAGODA_HTTP_PORT": str(port),
        "PAGODA_NATS_URL": common.nats_url,
        "PAGODA_NATS_TOKEN": common.nats_token.get_secret_value(),
        "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": API_KEY,
    }


async def launch_gateway(environ: dict[str, str]) -> asyncio.subprocess.Process:
    """Start one; whoever starts it ends it."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagoda_gateway", env=environ,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def until_ready(http: httpx.AsyncClient) -> None:
    """Return once it can serve requests."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                if (await http.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.02)  # another process: there is no event to wait on
