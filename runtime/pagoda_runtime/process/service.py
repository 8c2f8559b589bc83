"""The life of a service process: event loop, logs, telemetry, signals, health, exit code."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import uvloop
from pydantic_settings import BaseSettings

from pagoda_runtime.configuration.settings import CommonSettings, load_settings
from pagoda_runtime.errors import ModelFolderError, RuntimeServiceError, SettingsError
from pagoda_runtime.identity import new_worker_id
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.health_server import health_server
from pagoda_runtime.tasks.ending import end
from pagoda_runtime.telemetry.log import setup_logging
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry

__all__ = ["EXIT_SETTINGS", "Health", "ServiceContext", "load_or_exit", "run_service"]

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
EXIT_SETTINGS = 2

BUS_LOST_SECONDS = 1.5

GC_OBJECTS = 10_000
"""New objects between two collections of the youngest: a millisecond's work. By default one runs at
each 700, which one step of many streams makes."""

S = TypeVar("S", bound=BaseSettings)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What a service's main gets."""

    name: str
    instance_id: str
    common: CommonSettings
    health: Health
    stop: asyncio.Event  # set by SIGTERM and SIGINT
    tasks: (
        asyncio.TaskGroup
    )  # background tasks: cancelled when main returns; one that fails ends the service

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a part of the start returns; cancel it once `stop` is set.

        A thread that `work` waits for goes on, until the process ends.

        Raises:
            StoppedError: `stop` is set; the service then ends as if its main had returned. `work`
                may raise it, too.
        """
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise StoppedError
            return working.result()
        finally:
            await end(working, stopping)

    @contextlib.asynccontextmanager
    async def bus(self, name: str) -> AsyncIterator[Bus]:
        """Yield a connected bus, see `Bus.connect`; a service that waits for it can be stopped.

        From then on the service is not ready while the connection is down for BUS_LOST_SECONDS or
        longer: a reconnect does not make it flap.
        """
        async with contextlib.AsyncExitStack() as stack:
            connecting = stack.enter_async_context(Bus.connect(self.common, name=name))
            bus = await self.unless_stopped(connecting)

            def why_not() -> str:
                seconds = bus.lost_seconds
                return f"no connection for {seconds:.0f} s" if seconds >= BUS_LOST_SECONDS else ""

            self.health.add_check("nats", why_not)
            yield bus


class _MainReturnedError(Exception):
    """Ends the task group."""


class StoppedError(Exception):
    """The service was told to stop before it had started."""


def load_or_exit(cls: type[S]) -> S:
    """Return the settings, or print what is wrong with them and exit with code 2."""
    try:
        return load_settings(cls)
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(EXIT_SETTINGS) from None


def run_service(
    name: str,
    common: CommonSettings,
    main: Callable[[ServiceContext], Awaitable[None]],
    *,
    health_host: str = "127.0.0.1",
    health_port: int | None,
    instance_id: str | None = None,
) -> NoReturn:
    """Run `main` until it returns, once `stop` is set and its work has drained; end the process.

    Args:
        name: of the service, e.g. router.
        common: the platform's settings.
        main: the service; readiness is its business (`ServiceContext.health`).
        health_host: address of the health server.
        health_port: 0 for any free port, None for no health server.
        instance_id: names this process in logs and traces, e.g. the worker id; None draws one.

    The exit code: 0 stopped cleanly, 1 failed, 2 unusable settings.
    """
    instance_id = instance_id or new_worker_id(name)
    setup_logging(
        name, instance_id=instance_id, level=common.log_level, log_format=common.log_format
    )
    code = 0
    try:
        setup_telemetry(name, common, instance_id=instance_id)
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        runner.run(_run(name, instance_id, common, main, health_host, health_port))
    except Exception as error:
        code = max(_report(name, leaf) for leaf in _leaves(error))
    shutdown_telemetry()
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process now that all its work has.

    By itself it would wait for threads, whatever they wait for: uvloop's for look-ups of names, a
    minute each where no name server answers, gRPC's for its poller (docs/adr/0076). And the
    interpreter's last collections would walk every module, for a second with torch.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def keep_loaded() -> None:
    """Let the garbage collector forget all that is loaded: it stays. Call when work may come.

    Full collections would walk it: 0.1 s, in which nobody is served and no step begins. And of
    what comes it looks at `GC_OBJECTS` at a time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS)


async def _run(
    name: str,
    instance_id: str,
    common: CommonSettings,
    main: Callable[[ServiceContext], Awaitable[None]],
    health_host: str,
    health_port: int | None,
) -> None:
    health, stop = Health(), asyncio.Event()

    def on_signal() -> None:
        logger.info("stopping")
        health.set_stopping()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with asyncio.TaskGroup() as tasks:
            context = ServiceContext(name, instance_id, common, health, stop, tasks)
            if health_port is None:
                await main(context)
            else:
                async with health_server(health, host=health_host, port=health_port) as port:
                    logger.info(
                        "%s %s: health on http://%s:%d", name, instance_id, health_host, port
                    )
                    await main(context)
            raise _MainReturnedError
    except* (_MainReturnedError, StoppedError):
        logger.info("%s stopped", name)


def _report(name: str, error: BaseException) -> int:
    """Log why the service ended and return the exit code; our own errors need no traceback."""
    if isinstance(error, RuntimeServiceError):
        logger.error("%s cannot go on: %s", name, error)
    else:
        logger.error("%s failed: %r", name, error, exc_info=error)
    return EXIT_SETTINGS if isinstance(error, (SettingsError, ModelFolderError)) else EXIT_FAILURE


def _leaves(group: BaseException) -> list[BaseException]:
    if not isinstance(group, BaseExceptionGroup):
        return [group]
    return [leaf for error in group.exceptions for leaf in _leaves(error)]
