"""The runner of this replica's batches, tied to its application."""

import contextlib
from collections.abc import AsyncIterator

from starlette.types import ASGIApp

from pagoda_gateway.batches.batch_run import RunOptions
from pagoda_gateway.batches.places import Places
from pagoda_gateway.batches.runner import running_batches
from pagoda_gateway.errors import UnavailableError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.batches.line_caller import LineCaller


@contextlib.asynccontextmanager
async def batches_in_background(gateway: Gateway, app: ASGIApp) -> AsyncIterator[None]:
    """Run batches through `app` while requests leave room."""
    settings = gateway.settings

    def room(most: int) -> int:
        is_ready = gateway.health.is_ready and gateway.bus.is_connected
        return gateway.admission.background_room(most) if is_ready else 0

    def check_model(name: str) -> None:
        with contextlib.suppress(UnavailableError):  # served here, by a worker that is to come
            gateway.catalog.get(name)

    options = RunOptions(
        owner=gateway.gateway_id,
        max_lines=settings.batch_max_lines,
        max_line_bytes=settings.max_body_bytes,
        check_model=check_model,
        until_accounted=gateway.accounted.until_accounted,
    )
    places = Places(settings.batch_concurrency, room)
    caller = LineCaller(app, gateway.tenancy.api_keys.find_valid)
    async with running_batches(gateway.files, gateway.batches, caller, places, options):
        yield
