"""Brings what the engine says of single layers from its threads to the event loop."""

import asyncio
import contextlib
from collections.abc import Callable

from pagoda_engine import ComputedLayers

Listener = Callable[[tuple[ComputedLayers, ...]], None]


class LayerEvents:
    """Made before the engine, which calls it, and before the listener, whom it calls."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self._event_loop = asyncio.get_running_loop()

    def __call__(self, layers: tuple[ComputedLayers, ...]) -> None:
        """Take layers, in any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to tell
            self._event_loop.call_soon_threadsafe(self._deliver, layers)

    def _deliver(self, layers: tuple[ComputedLayers, ...]) -> None:
        if self.listener is not None:
            self.listener(layers)
