"""A KV pool that other processes of this host read blocks from without asking its owner.

The owner exports a handle, small enough for a message; a peer opens it and copies blocks into
memory of its own. On CUDA the memory is mapped by CUDA IPC, on cpu it is shared memory; the rest is
the same. What a peer reads may change under its hands once the owner gives the blocks away, so it
verifies its copy. Knows nothing of leases, or of how a handle travels.
"""

import enum
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from pagoda_engine.cache.copy_lanes import DEVICE_CHUNK_BYTES, borrowed
from pagoda_engine.cache.cuda_ipc import CudaDriver, CudaIpcError, CudaIpcMemory
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.shared_memory import (
    ByteArray,
    SharedMemory,
    SharedMemoryError,
    open_shared_memory,
)
from pagoda_kernels import gather_blocks

logger = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PeerPoolError(Exception):
    """A pool cannot be exported, opened or read; blocks must travel another way."""


class PoolKind(enum.Enum):
    """How a peer gets at the memory."""

    SHARED_MEMORY = "shared memory"
    CUDA_IPC = "CUDA IPC"
    NIXL = "NIXL"


@dataclass(frozen=True, slots=True)
class PoolHandle:
    """What a peer needs to open a pool.

    Attributes:
        kind: how.
        memory: names the memory, to the mechanism of this kind.
        num_bytes: of the memory that is to be mapped.
        offset: where in it the pool begins, bytes.
        num_blocks: of the pool.
        layout: name of its layout.
        device: the GPU it lies on; empty: host memory.
        host: the boot of the machine it lies in; empty: any host may read it.
    """

    kind: PoolKind
    memory: bytes
    num_bytes: int
    offset: int
    num_blocks: int
    layout: str
    device: str
    host: str


class PeerPool(Protocol):
    """Another process's pool, opened. Thread-safe."""

    @property
    def kind(self) -> PoolKind:
        """How it is read."""
        ...

    @property
    def tensor(self) -> torch.Tensor | None:
        """The pool as the reader's device sees it, for `KvCache.copy_blocks`; None: it does not.

        Raises:
            PeerPoolError: `close` was called.
        """
        ...

    @property
    def chunk_bytes(self) -> int:
        """What one read should copy at most: it is as fast as it gets, and bounds memory."""
        ...

    def read(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """Copy blocks: uint8 ``[N, part_bytes]``, contiguous, this process's own memory.

        Where blocks are in parts: what lies in these places of the pool, ``[N, place_bytes]``.

        Raises:
            PeerPoolError: a block is not in the pool, or `close` was called.
        """
        ...

    def close(self) -> None:
        """Refuse reads from now on; unmap when those under way have ended. Idempotent."""
        ...


Opener = Callable[[PoolHandle, KvCache], PeerPool]


class PoolExport:
    """The owner's side of one pool that peers on this host can map.

    Attributes:
        handle: for peers; worthless once the pool's process has ended.
    """

    def __init__(self, kv_cache: KvCache) -> None:
        """Make a pool's memory known.

        Raises:
            PeerPoolError: its memory is private.
        """
        self._kv_cache = kv_cache
        if kv_cache.device.type == "cuda":
            self.handle = _cuda_handle(kv_cache)
        elif kv_cache.memory is not None:
            self.handle = _handle(
                kv_cache, PoolKind.SHARED_MEMORY, kv_cache.memory.handle, kv_cache.tensor.nbytes, 0
            )
        else:
            raise PeerPoolError("the KV pool lies in private memory")

    def close(self) -> None:
        """Let nobody open shared memory any more. Peers that have opened it keep it."""
        if self._kv_cache.memory is not None:
            self._kv_cache.memory.close()


def exportable_cache(layout: KvLayout, num_blocks: int, device: torch.device) -> KvCache:
    """Return a cache that `PoolExport` takes, or a private one where the host has no way to."""
    memory = None
    if device.type == "cpu":
        try:
            memory = SharedMemory(num_blocks * layout.block_bytes)
        except SharedMemoryError as error:
            logger.warning("the KV pool stays private: %s", error)
    return KvCache(layout, num_blocks, device, memory=memory)


def open_peer_pool(
    handle: PoolHandle, own: KvCache, further: Mapping[PoolKind, Opener] | None = None
) -> PeerPool:
    """Open another process's pool, to read blocks for a cache of the same layout.

    Blocks that are read lie on the device of `own`, or in host memory if the pool does.

    Args:
        handle: of the pool.
        own: what the blocks are for.
        further: opens kinds that this module does not know.

    Raises:
        PeerPoolError: another host, container, user or layout, a GPU out of reach, or its process
            has ended.
    """
    layout = own.layout
    if handle.layout != layout.name:
        raise PeerPoolError(f"the pool's layout is {handle.layout}, mine is {layout.name}")
    if handle.host not in ("", _host()):
        raise PeerPoolError("the pool is in another host's memory")
    pool_bytes = handle.num_blocks * layout.block_bytes
    if not 0 < pool_bytes <= handle.num_bytes - handle.offset or handle.offset < 0:
        raise PeerPoolError(
            f"{handle.num_blocks} blocks of {layout.block_bytes} bytes at {handle.offset} are not "
            f"within {handle.num_bytes} bytes"
        )
    opener = {**_OPENERS, **(further or {})}.get(handle.kind)
    if opener is None:
        raise PeerPoolError(f"pools by {handle.kind.value} are not known here")
    return opener(handle, own)


class SharedMemoryPool:
    """A pool in shared memory."""

    kind = PoolKind.SHARED_MEMORY
    chunk_bytes = 2**20  # stays in the processor's cache until it was digested and written

    def __init__(self, handle: PoolHandle, own: KvCache) -> None:
        try:
            memory = open_shared_memory(handle.memory, num_bytes=handle.num_bytes)
        except SharedMemoryError as error:
            raise PeerPoolError(str(error)) from error
        pool_bytes = handle.num_blocks * own.block_bytes
        pool = memory[handle.offset : handle.offset + pool_bytes]
        # What one plane of a layer of a block is: [planes, num_layers, num_blocks, run_bytes]
        shape = own.layout.pool_shape(handle.num_blocks)
        self._runs: ByteArray | None = pool.reshape(*shape[:3], -1)
        self._shape = shape
        self._own = own

    @property
    def tensor(self) -> torch.Tensor:
        """See `PeerPool.tensor`."""
        runs = self._open_runs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch fears for memory that cannot be written
            flat = torch.from_numpy(runs).flatten()
        return flat.view(self._own.layout.dtype).view(self._shape)

    def _open_runs(self) -> ByteArray:
        runs = self._runs
        if runs is None:
            raise PeerPoolError("the pool is closed")
        return runs

    def read(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """See `PeerPool.read`."""
        runs = self._open_runs()
        check_blocks(block_ids, runs.shape[2])
        own = self._own
        num_bytes = own.place_bytes if layers is None else own.part_bytes(layers)
        rows = np.empty((len(block_ids), num_bytes), dtype=np.uint8)
        part = runs if layers is None else runs[:, layers.start : layers.stop]
        blocks = rows.reshape(len(block_ids), *part.shape[:2], part.shape[3])
        for block, block_id in zip(blocks, block_ids, strict=True):
            block[...] = part[:, :, block_id]
        return torch.from_numpy(rows)

    def close(self) -> None:
        """See `PeerPool.close`."""
        self._runs = None


class CudaIpcPool:
    """A pool in the memory of a GPU; reads run on the lanes of the reader's cache."""

    kind = PoolKind.CUDA_IPC
    chunk_bytes = DEVICE_CHUNK_BYTES

    def __init__(self, handle: PoolHandle, own: KvCache) -> None:
        if own.device.type != "cuda":
            raise PeerPoolError(f"the pool is on GPU {handle.device}, this process uses none")
        pool_bytes = handle.num_blocks * own.block_bytes
        try:
            memory = CudaIpcMemory(CudaDriver(_index(own.device)), handle.memory)
            if memory.num_bytes < handle.offset + pool_bytes:
                raise CudaIpcError(f"{memory.num_bytes} bytes were mapped, too few for the pool")
            flat = memory.tensor(handle.offset, pool_bytes, own.device)
        except CudaIpcError as error:
            raise PeerPoolError(f"GPU {handle.device}: {error}") from error
        shape = own.layout.pool_shape(handle.num_blocks)
        self._blocks: torch.Tensor | None = flat.view(own.layout.dtype).view(shape)
        self._own = own

    @property
    def tensor(self) -> torch.Tensor:
        """See `PeerPool.tensor`."""
        blocks = self._blocks
        if blocks is None:
            raise PeerPoolError("the pool is closed")
        return blocks

    def read(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """See `PeerPool.read`."""
        blocks = self.tensor
        check_blocks(block_ids, blocks.shape[2])
        part_bytes = self._own.part_bytes(layers)
        part = blocks if layers is None else blocks[:, layers.start : layers.stop]
        with borrowed(self._own.lanes):
            ids = torch.tensor(block_ids, dtype=torch.int64, device=self._own.device)
            rows = gather_blocks(part, ids).view(torch.uint8)
        return rows.view(len(block_ids), part_bytes)

    def close(self) -> None:
        """See `PeerPool.close`."""
        self._blocks = None


_OPENERS: dict[PoolKind, Opener] = {
    PoolKind.SHARED_MEMORY: SharedMemoryPool,
    PoolKind.CUDA_IPC: CudaIpcPool,
}


def _cuda_handle(kv_cache: KvCache) -> PoolHandle:
    address = kv_cache.tensor.data_ptr()
    try:
        memory, base, num_bytes = CudaDriver(_index(kv_cache.device)).export(address)
    except CudaIpcError as error:
        raise PeerPoolError(f"{error}; torch must not use expandable segments") from error
    return _handle(kv_cache, PoolKind.CUDA_IPC, memory, num_bytes, address - base)


def _handle(
    kv_cache: KvCache, kind: PoolKind, memory: bytes, num_bytes: int, offset: int
) -> PoolHandle:
    device = ""
    if kv_cache.device.type == "cuda":
        device = str(torch.cuda.get_device_properties(kv_cache.device).uuid)
    return PoolHandle(
        kind=kind,
        memory=memory,
        num_bytes=num_bytes,
        offset=offset,
        num_blocks=kv_cache.num_blocks,
        layout=kv_cache.layout.name,
        device=device,
        host=_host(),
    )


def check_blocks(block_ids: Sequence[int], num_blocks: int) -> None:
    """Raise PeerPoolError unless all blocks are in the pool."""
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise PeerPoolError(f"block {block_id} is not in a pool of {num_blocks} blocks")


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _host() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # not Linux: nothing to open either
