"""`python -m pagoda_gateway`: one gateway process."""

import contextlib
import logging
import sys

from pagoda_runtime.process.loading import loading

with loading():
    from pagoda_gateway.config import GatewaySettings
    from pagoda_gateway.gateway import open_gateway
    from pagoda_gateway.http.app import make_app
    from pagoda_gateway.http.batches.background import batches_in_background
    from pagoda_gateway.http.server import drain, http_server, listen
    from pagoda_runtime.configuration.model_folder import resolve_model_folder
    from pagoda_runtime.configuration.settings import CommonSettings
    from pagoda_runtime.process.service import (
        ServiceContext,
        keep_loaded,
        load_or_exit,
        run_service,
    )

logger = logging.getLogger(__name__)


def main() -> int:
    """Load the settings and run until SIGTERM."""
    common, settings = load_or_exit(CommonSettings), load_or_exit(GatewaySettings)

    async def serve(service: ServiceContext) -> None:
        folder = resolve_model_folder(common)
        async with service.bus(service.instance_id) as bus, contextlib.AsyncExitStack() as stack:
            opening = open_gateway(
                common=common,
                settings=settings,
                model_folder=folder,
                bus=bus,
                health=service.health,
                gateway_id=service.instance_id,
            )
            # It reads the files of every model, seconds for each large one.
            gateway = await service.unless_stopped(stack.enter_async_context(opening))
            app = make_app(gateway)
            await stack.enter_async_context(batches_in_background(gateway, app))
            serving = http_server(
                app,
                listen(settings.host, common.http_port),
                max_connections=settings.max_connections,
                trusted_proxies=settings.trusted_proxies,
            )
            server = await stack.enter_async_context(serving)
            keep_loaded()
            logger.info("listening on http://%s:%d", settings.host, common.http_port)
            await service.stop.wait()
            server.end_reuse()
            await drain(gateway)

    return run_service(
        "gateway",
        common,
        serve,
        health_host=settings.health_host,
        health_port=settings.health_port,
    )


if __name__ == "__main__":
    sys.exit(main())
