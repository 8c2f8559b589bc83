"""The adapters that a worker has loaded, by name: those of its settings and those of the list.

Knows names, the list and the engine's loop. Knows nothing of sequences.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from opentelemetry.context import Context

from pagoda.rpc.v1 import adapter_pb2, status_pb2
from pagoda_engine import Engine, EngineError, read_adapter
from pagoda_engine.models.description import DecoderDescription
from pagoda_worker.adapters.adapter_list import AdapterList
from pagoda_worker.engine_loop import EngineLoop
from pagoda_worker.errors import AdapterRefusedError, EngineLoopError

logger = logging.getLogger(__name__)

FOLLOW_SECONDS = 1.0
RETRY_SECONDS = 15.0  # after something on the list could not be loaded
LOAD_SECONDS = 45.0
"""To read one and hand it to the engine; below what a request on NATS may take."""


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """One name.

    Attributes:
        digest: of what it leads to.
        folder: from where it was read.
        is_fixed: the settings name it, so it stays.
    """

    digest: bytes
    folder: Path
    is_fixed: bool


class LoadedAdapters:
    """What sequences may name here. Changes one at a time."""

    def __init__(
        self,
        loop: EngineLoop[Engine],
        *,
        description: DecoderDescription,
        dtype: torch.dtype,
        max_rank: int,
        fixed: Mapping[str, Path],
        listed: AdapterList | None,
    ) -> None:
        """Begin with none; `start` loads them.

        Args:
            loop: of the engine.
            description: of its decoder.
            dtype: of its weights.
            max_rank: see `Engine.max_adapter_rank`; 0: none can be loaded.
            fixed: folders by name, for as long as the worker lives.
            listed: what else is to be loaded; None: nothing, and nothing can be.
        """
        self._loop = loop
        self._description = description
        self._dtype = dtype
        self._max_rank = max_rank
        self._fixed = fixed
        self._list = listed
        self._by_name: dict[str, LoadedAdapter] = {}
        self._changing = asyncio.Lock()
        self._stamp: tuple[int, int] | None = None
        self._all_loaded = True
        self._said: set[tuple[str, str]] = set()

    def has(self, digest: bytes) -> bool:
        """Tell whether a sequence may name it."""
        return any(adapter.digest == digest for adapter in self._by_name.values())

    def announced(self) -> list[status_pb2.Adapter]:
        """Return the wire's form of all, by name."""
        return [
            status_pb2.Adapter(name=name, digest=adapter.digest)
            for name, adapter in sorted(self._by_name.items())
        ]

    async def start(self) -> None:
        """Load those of the settings, then what is listed.

        Raises:
            AdapterRefusedError: one of the settings' cannot be loaded. Of the list that is logged.
        """
        for name, folder in self._fixed.items():
            try:
                await self._load(name, folder, is_fixed=True)
            except AdapterRefusedError as error:
                raise AdapterRefusedError(f"PAGODA_ADAPTERS: {name}: {error}") from error
        self._all_loaded = await self._follow_once()

    async def follow(self) -> None:
        """Do what the list says whenever it has changed, until cancelled."""
        while self._list is not None:
            await asyncio.sleep(FOLLOW_SECONDS if self._all_loaded else RETRY_SECONDS)
            self._all_loaded = await self._follow_once()

    async def on_request(
        self, request: adapter_pb2.AdapterRequest, _context: Context
    ) -> adapter_pb2.AdapterResponse:
        """Load or unload one, and write it into the list."""
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                if request.path:
                    digest = await self._load_listed(request.name, request.path)
                else:
                    digest = await self._unload_listed(request.name)
        except (AdapterRefusedError, TimeoutError) as error:
            reason = str(error) or f"it took more than {LOAD_SECONDS:g} s"
            return adapter_pb2.AdapterResponse(
                status=adapter_pb2.ADAPTER_STATUS_REFUSED, message=reason
            )
        return adapter_pb2.AdapterResponse(status=adapter_pb2.ADAPTER_STATUS_DONE, digest=digest)

    async def _load_listed(self, name: str, path: str) -> bytes:
        listed = self._the_list()
        async with self._changing:  # at once: an unload that comes behind it stays behind it
            folder = await asyncio.to_thread(listed.resolve, path)
            was_here = name in self._by_name
            digest = await self._load(name, folder, is_fixed=False)
            try:
                await asyncio.to_thread(listed.change, name, str(folder))
            except AdapterRefusedError:
                if not was_here:
                    await self._unload(name)
                raise
        return digest

    async def _unload_listed(self, name: str) -> bytes:
        listed = self._the_list()
        async with self._changing:
            adapter = self._by_name.get(name)
            if adapter is not None and adapter.is_fixed:
                raise AdapterRefusedError(f"PAGODA_ADAPTERS names {name!r}, so it stays")
            await asyncio.to_thread(listed.change, name, "")
            await self._unload(name)
        return b"" if adapter is None else adapter.digest

    def _the_list(self) -> AdapterList:
        if self._list is None:
            raise AdapterRefusedError(
                "adapters can be loaded only at the start here: set PAGODA_ADAPTER_DIR on the "
                "workers to the folder that they are in"
            )
        return self._list

    async def _follow_once(self) -> bool:
        """Do what the list says, if it has changed; tell whether all of it could be done."""
        if self._list is None:
            return True
        stamp, is_done = await asyncio.to_thread(self._list.stamp), True
        if stamp == self._stamp:
            return True
        listed = await asyncio.to_thread(self._list.read)
        async with self._changing:
            for name in [n for n, a in self._by_name.items() if not a.is_fixed and n not in listed]:
                await self._unload(name)
            for name, path in listed.items():
                known = self._by_name.get(name)
                if known is not None and (known.is_fixed or known.folder == Path(path)):
                    continue
                try:
                    if known is not None:
                        await self._unload(name)
                    folder = await asyncio.to_thread(self._list.resolve, path)
                    await self._load(name, folder, is_fixed=False)
                except AdapterRefusedError as error:
                    self._say_once(name, str(error))
                    is_done = False
        self._stamp = stamp if is_done else None
        return is_done

    async def _load(self, name: str, folder: Path, *, is_fixed: bool) -> bytes:
        """Load an adapter under a name; nothing happens if it is there with the same content."""
        if not self._max_rank:
            raise AdapterRefusedError(
                "the workers have no room for adapters: set PAGODA_MAX_ADAPTERS"
            )
        try:
            adapter = await asyncio.to_thread(
                read_adapter,
                folder,
                self._description,
                max_rank=self._max_rank,
                dtype=self._dtype,
            )
            known = self._by_name.get(name)
            if known is not None and known.digest != adapter.digest:
                raise AdapterRefusedError(f"{name!r} is loaded with other content: unload it first")
            try:
                await self._loop.call(lambda engine: engine.load_adapter(adapter))
            except asyncio.CancelledError:  # the engine may load it yet
                if not self.has(adapter.digest):
                    with contextlib.suppress(EngineLoopError):
                        self._loop.post(lambda engine: engine.unload_adapter(adapter.digest))
                raise
        except (EngineError, EngineLoopError) as error:
            raise AdapterRefusedError(
                str(error)
                .replace("max_adapter_rank", "PAGODA_MAX_ADAPTER_RANK")
                .replace("max_adapters", "PAGODA_MAX_ADAPTERS")
            ) from error
        self._by_name[name] = LoadedAdapter(adapter.digest, folder, is_fixed)
        logger.info("adapter %s is loaded: %s from %s", name, adapter.digest.hex(), folder)
        return adapter.digest

    async def _unload(self, name: str) -> None:
        adapter = self._by_name.pop(name, None)
        if adapter is None:
            return
        if not self.has(adapter.digest):  # the same content may have another name
            await self._loop.call(lambda engine: engine.unload_adapter(adapter.digest))
        logger.info("adapter %s is unloaded", name)

    def _say_once(self, name: str, reason: str) -> None:
        if (name, reason) not in self._said:
            self._said.add((name, reason))
            logger.error("the listed adapter %s is not loaded: %s", name, reason)
