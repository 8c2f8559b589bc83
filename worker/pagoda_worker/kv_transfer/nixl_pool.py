"""Pools read over the network by NIXL: RDMA where there is any, else what UCX finds.

The same interface as a pool of this host: the owner registers its memory and says where it is, a
peer reads blocks from it without asking. NIXL is optional (``pip install pagoda-worker[nixl]``) and
imported where it is used. Its metadata authenticates nobody: it travels in calls that do, and
UCX's own ports belong on a trusted network.
"""

import collections
import contextlib
import logging
import queue
import secrets
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import torch

from pagoda_engine import KvCache
from pagoda_engine.cache import (
    NUM_LANES,
    PeerPoolError,
    PoolHandle,
    PoolKind,
    borrowed,
    check_blocks,
)

logger = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 2**20
READ_SECONDS = 10.0
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 20e-6, 1e-3
_HEAD = struct.Struct("<QI")  # address of the pool, index of its GPU for the owner


def read_buffer_bytes(block_bytes: int) -> int:
    """Bytes of each of the `NUM_LANES` buffers that a reader has; 0 without NIXL: it has none."""
    return max(CHUNK_BYTES, block_bytes) if find_spec("nixl") else 0


class NixlExport:
    """The owner's side of one pool.

    Attributes:
        handle: for peers on any host; worthless once the pool's process has ended.
    """

    def __init__(self, kv_cache: KvCache) -> None:
        """Register a pool's memory.

        Raises:
            PeerPoolError: NIXL is not installed, or does not take the memory; or blocks are in
                parts, whose places are not known to peers.
        """
        if kv_cache.part_places is not None:
            raise PeerPoolError("blocks of this KV pool are in parts; they travel in messages")
        self._agent = _make_agent()
        tensor = kv_cache.tensor
        head = _HEAD.pack(tensor.data_ptr(), tensor.device.index or 0)
        with _translated():
            _register(self._agent, tensor)
            memory = head + self._agent.get_agent_metadata()
        self.handle = PoolHandle(
            kind=PoolKind.NIXL,
            memory=memory,
            num_bytes=tensor.nbytes,
            offset=0,
            num_blocks=kv_cache.num_blocks,
            layout=kv_cache.layout.name,
            device="cuda" if tensor.is_cuda else "",
            host="",
        )

    def close(self) -> None:
        """Let go of the agent; peers cannot read any more."""
        self._agent = None


class NixlReader:
    """Opens pools of others for one cache: one agent and `NUM_LANES` buffers for all of them.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a pool may be collected by the thread that holds it
        self._agent: Any = None
        self._buffers: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        self._num_users: collections.Counter[bytes] = collections.Counter()  # of an owner's agent

    def open(self, handle: PoolHandle, own: KvCache) -> "NixlPool":
        """Connect to a pool's owner; `own` is always the same cache.

        Raises:
            PeerPoolError: NIXL is not installed, or cannot reach the owner.
        """
        metadata = handle.memory[_HEAD.size :]
        with self._lock, _translated():
            if self._agent is None:
                self._start(own)
            self._num_users[metadata] += 1  # first: an older pool may be collected meanwhile
            try:
                name = self._agent.add_remote_agent(metadata)
            except BaseException:
                self._num_users[metadata] -= 1
                raise
        name = name.decode() if isinstance(name, bytes) else name
        return NixlPool(self, self._agent, name, handle, own)

    def let_go(self, name: str, metadata: bytes) -> None:
        """A pool of this owner is gone; others may be open: what it had until it was lost."""
        with self._lock:
            self._num_users[metadata] -= 1
            if not self._num_users[metadata]:
                del self._num_users[metadata]
                with _translated():
                    self._agent.remove_remote_agent(name)

    @contextlib.contextmanager
    def buffer(self) -> Iterator[torch.Tensor]:
        """Borrow registered memory for one read; waits while others have all."""
        buffer = self._buffers.get()
        try:
            yield buffer
        finally:
            self._buffers.put(buffer)

    def _start(self, own: KvCache) -> None:
        agent, size = _make_agent(), read_buffer_bytes(own.block_bytes)
        buffers = torch.empty((NUM_LANES, size), dtype=torch.uint8, device=own.device)
        _register(agent, buffers)
        for buffer in buffers:
            self._buffers.put(buffer)
        self._agent = agent


class NixlPool:
    """A pool in the memory of a peer, perhaps on another host."""

    kind = PoolKind.NIXL
    tensor = None
    chunk_bytes = CHUNK_BYTES

    def __init__(
        self, reader: NixlReader, agent: Any, name: str, handle: PoolHandle, own: KvCache
    ) -> None:
        self._reader = reader
        self._agent = agent
        self._name = name
        self._metadata = handle.memory[_HEAD.size :]
        self._own = own
        self._memory_type = "VRAM" if handle.device else "DRAM"
        self._num_blocks = handle.num_blocks
        self._run_bytes = own.block_bytes // (own.layout.num_planes * own.num_layers)
        self._is_open = True
        self._address, self._device = _HEAD.unpack_from(handle.memory)

    def read(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """See `PeerPool.read`. At most `chunk_bytes`, or one block."""
        check_blocks(block_ids, self._num_blocks)
        layers = range(self._own.num_layers) if layers is None else layers
        num_bytes = len(block_ids) * self._own.part_bytes(layers)
        with self._reader.buffer() as buffer:
            self._check_open()
            if num_bytes > len(buffer):
                raise PeerPoolError(f"{num_bytes} bytes are more than the {len(buffer)} of a read")
            with _translated():
                self._transfer(buffer, block_ids, layers)
            runs = buffer[:num_bytes].view(-1, len(block_ids), self._run_bytes)
            with borrowed(self._own.lanes):
                rows = runs.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        return rows.view(len(block_ids), -1)

    def close(self) -> None:
        """See `PeerPool.close`. A read that waits for the owner ends, too."""
        self._is_open = False

    def __del__(self) -> None:
        try:
            self._reader.let_go(self._name, self._metadata)
        except PeerPoolError as error:
            logger.info("a peer had gone already: %s", error)

    def _transfer(self, buffer: torch.Tensor, block_ids: Sequence[int], layers: range) -> None:
        """Read run by run into ``[plane, layer, block, run_bytes]``.

        So blocks that follow one another in the pool do so here too, and need one entry together.
        """
        local, remote = [], []
        at, index = buffer.data_ptr(), buffer.device.index or 0
        for plane in range(self._own.layout.num_planes):
            for layer in layers:
                row = (plane * self._own.num_layers + layer) * self._num_blocks
                for first, count in _consecutive(block_ids):
                    there = self._address + (row + first) * self._run_bytes
                    size = count * self._run_bytes
                    local.append((at, size, index))
                    remote.append((there, size, self._device))
                    at += size
        local_type = "VRAM" if buffer.is_cuda else "DRAM"
        transfer = self._agent.initialize_xfer(
            "READ",
            self._agent.get_xfer_descs(local, mem_type=local_type),
            self._agent.get_xfer_descs(remote, mem_type=self._memory_type),
            self._name,
        )
        try:
            self._wait(transfer)
        finally:
            # One that cannot be cancelled may still write: what it spoils has another digest.
            self._agent.release_xfer_handle(transfer)

    def _wait(self, transfer: Any) -> None:
        state, pause = self._agent.transfer(transfer), MIN_POLL_SECONDS
        ends_at = time.monotonic() + READ_SECONDS
        while state == "PROC":
            self._check_open()
            if time.monotonic() > ends_at:
                raise PeerPoolError(f"NIXL: a read did not end within {READ_SECONDS:g} s")
            time.sleep(pause)  # it has nothing to wait on
            pause = min(2 * pause, MAX_POLL_SECONDS)
            state = self._agent.check_xfer_state(transfer)
        if state != "DONE":
            raise PeerPoolError(f"NIXL: a read ended with {state}")

    def _check_open(self) -> None:
        if not self._is_open:
            raise PeerPoolError("the pool is closed")


def _consecutive(block_ids: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of ids that follow one another."""
    groups = groupby(enumerate(block_ids), lambda entry: entry[1] - entry[0])
    runs = [[block_id for _, block_id in group] for _, group in groups]
    return [(run[0], len(run)) for run in runs]


def _register(agent: Any, tensor: torch.Tensor) -> None:
    entry = (tensor.data_ptr(), tensor.nbytes, tensor.device.index or 0, "")
    agent.register_memory([entry], mem_type="VRAM" if tensor.is_cuda else "DRAM")


def _make_agent() -> Any:
    try:
        from nixl import nixl_agent, nixl_agent_config, nixl_thread_sync_t
    except ImportError as error:
        raise PeerPoolError(
            f"NIXL cannot be imported ({error}); pip install 'pagoda-worker[nixl]'"
        ) from error
    nixl_logger = logging.getLogger("nixl")
    nixl_logger.handlers.clear()  # it writes to stdout by itself; let its lines go where ours go
    nixl_logger.propagate = True
    with _translated():
        config = nixl_agent_config(
            backends=["UCX"], sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        )
        return nixl_agent(secrets.token_hex(16), config)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn NIXL's errors into ours; their types cannot be named where it is not installed."""
    try:
        yield
    except PeerPoolError:
        raise
    except Exception as error:
        raise PeerPoolError(f"NIXL: {error!r}") from error
