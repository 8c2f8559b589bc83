"""Two processes on one device: this one decodes, the other prefills and lets its KV be fetched.

Fetching runs in a thread, as in a worker: read another pool, or host memory that both map, write
the own pool, verify the digest there.
"""

import base64
import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.engine_driver import hash_block

from gpu.harness.ceilings import Ceilings
from gpu.harness.points import NotAvailableError, Setting, Subject
from gpu.harness.rows import Row
from gpu.model.imported_sequences import BLOCK_SIZE, fill_random
from gpu.model.random_model import random_model
from gpu.model.roofline import Roofline
from gpu.model.shapes import SHAPES
from gpu.transfer.scale import TRANSFER_SCALES
from pagoda_engine import Engine, EngineConfig
from pagoda_engine.cache.peer_pool import (
    PeerPool,
    PeerPoolError,
    PoolHandle,
    PoolKind,
    open_peer_pool,
)
from pagoda_engine.cache.shared_memory import SharedMemoryError, open_shared_memory

ANSWER_SECONDS = 60.0
CLOSE_SECONDS = 10.0


@dataclass
class Fetch:
    """A transfer; everything is known once it has arrived.

    Attributes:
        transfer_id: as given to the subject.
        way: ``pool``, ``host`` or ``none``.
        block_ids: logical block -> physical one here.
        token_id: the peer's first token, if it sampled one.
        token_at: when that was known here.
        at: when the last block was verified.
        num_bad_blocks: whose digest did not match.
        copy_seconds: in which this process copied and verified.
    """

    transfer_id: str
    way: str
    block_ids: Sequence[int]
    token_id: int | None = None
    token_at: float = 0.0
    at: float = 0.0
    num_bad_blocks: int = 0
    copy_seconds: float = 0.0


class TransferSubject(Subject):
    """The decoding engine, and the process beside it.

    Attributes:
        engine: decodes from graphs; prefills in chunks where it is asked to.
        arrived: transfers as they are done, or why there will be no more.
        alone_seconds: to a first token of the peer without a transfer, once measured.
    """

    def __init__(self, setting: Setting, size: str) -> None:
        self.setting = setting
        self.scale = scale = TRANSFER_SCALES[size]
        self.shape = SHAPES[scale.shape]
        self.roofline = Roofline(self.shape, scale.dtype)
        command = [sys.executable, str(Path(__file__).with_name("peer.py")), size]
        self._peer = subprocess.Popen(  # it imports while this process builds
            [*command, setting.device, str(setting.seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        device = torch.device(setting.device)
        self.model = random_model(
            self.shape,
            dtype=scale.dtype,
            device=device,
            seed=setting.seed,
            max_positions=scale.max_model_len,
        )
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=scale.num_blocks,
            max_num_seqs=scale.batch + 8,
            max_num_batched_tokens=scale.chunk,
            max_model_len=scale.max_model_len,
            device=device.type,
            enable_prefix_caching=False,
            graph_batch_sizes=(1, scale.batch, scale.batch + 8),
        )
        self.engine = Engine(self.model, config, hash_block=hash_block)
        fill_random(self.engine.kv_cache.tensor, setting.seed)
        self.engine.capture()
        self.arrived: queue.SimpleQueue[Fetch | Exception] = queue.SimpleQueue()
        self.alone_seconds: float | None = None
        self._fetches: dict[str, Fetch] = {}
        ready = self._hear()
        self._pool, self._refusal = self._open_pool(ready)
        self._host = self._open_host(ready)
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()
        kind = None if self._pool is None else self._pool.kind.value
        self.facts: Row = {"pool": kind, "refusal": self._refusal}

    @property
    def ceilings(self) -> Ceilings:
        """Of the device, measured earlier in this run."""
        return self.setting.ceilings

    def reset(self) -> None:
        """Nothing that was under way can be relied on: end the peer, so that later points fail."""
        self.close()

    def close(self) -> None:
        """End the peer. Idempotent."""
        assert self._peer.stdin is not None
        assert self._peer.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._peer.stdin.close()
        try:
            self._peer.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._peer.kill()
            self._peer.wait()
        self._receiver.join()
        self._peer.stdout.close()

    def require(self, way: str) -> None:
        """Raise NotAvailableError unless KV can come that way here."""
        if way == "pool" and self._pool is None:
            raise NotAvailableError(self._refusal)
        if way == "host" and self._host is None:
            raise NotAvailableError("the two processes cannot map the same host memory")

    def send(self, transfer_id: str, way: str, num_blocks: int) -> None:
        """Fetch the first blocks of the peer's pool into the first blocks of this one."""
        self._fetches[transfer_id] = Fetch(transfer_id, way, range(num_blocks))
        block_ids = list(range(num_blocks))
        self._tell({"op": "send", "id": transfer_id, "way": way, "block_ids": block_ids})

    def prefill(
        self,
        sequence_id: str,
        prompt: list[int],
        block_ids: Sequence[int],
        *,
        way: str,
        by_layers: bool,
    ) -> None:
        """Let the peer prefill; its KV comes into these blocks."""
        self._fetches[sequence_id] = Fetch(sequence_id, way, block_ids)
        self._tell(
            {
                "op": "prefill",
                "id": sequence_id,
                "prompt": prompt,
                "way": way,
                "by_layers": by_layers,
            }
        )

    def release(self, sequence_id: str) -> None:
        """Let the peer free the blocks of a prefill."""
        self._tell({"op": "release", "id": sequence_id})

    def wait(self) -> Fetch:
        """Wait for the next transfer to be done.

        Raises:
            RuntimeError: the peer ended, or does not answer.
        """
        try:
            arrived = self.arrived.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise RuntimeError(f"no transfer was done in {ANSWER_SECONDS:.0f} s") from None
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def _open_pool(self, ready: dict[str, Any]) -> tuple[PeerPool | None, str]:
        if "error" in ready:
            return None, str(ready["error"])
        fields = ready["handle"]
        memory = base64.b64decode(fields["memory"])
        handle = PoolHandle(**{**fields, "kind": PoolKind(fields["kind"]), "memory": memory})
        try:
            return open_peer_pool(handle, self.engine.kv_cache), ""
        except PeerPoolError as error:
            return None, str(error)

    def _open_host(self, ready: dict[str, Any]) -> torch.Tensor | None:
        if ready["host"] is None:
            return None
        num_bytes = self.scale.num_peer_blocks * self.engine.kv_cache.block_bytes
        try:
            memory = open_shared_memory(ready["host"].encode(), num_bytes=num_bytes)
        except SharedMemoryError:
            return None
        return _as_tensor(memory)

    def _receive(self) -> None:
        assert self._peer.stdout is not None
        try:
            for line in self._peer.stdout:
                self._handle(json.loads(line))
            raise RuntimeError("the prefill process has ended")
        except Exception as error:
            self.arrived.put(error)

    def _handle(self, event: dict[str, Any]) -> None:
        fetch = self._fetches[event["id"]]
        now = time.perf_counter()
        match event["event"]:
            case "token":
                fetch.token_id, fetch.token_at = event["token_id"], now
            case "blocks":
                self._take(fetch, event)
            case "sent":
                del self._fetches[event["id"]]
                fetch.at = now
                self.arrived.put(fetch)

    def _take(self, fetch: Fetch, event: dict[str, Any]) -> None:
        cache = self.engine.kv_cache
        layers = None if event["layers"] is None else range(*event["layers"])
        theirs, first = event["block_ids"], event["first_block"]
        own = list(fetch.block_ids[first : first + len(theirs)])
        digests = torch.frombuffer(bytearray.fromhex(event["digests"]), dtype=torch.uint8)
        digests = digests.view(len(theirs), -1)
        started = time.perf_counter()
        if fetch.way == "pool":
            assert self._pool is not None
            source = self._pool.tensor
            assert source is not None
            bad = cache.copy_blocks(source, theirs, own, layers, expected=digests)
        else:
            rows = self._rows(len(theirs), layers, event["offset"])
            bad = cache.write_blocks(own, rows, layers, expected=digests)
        fetch.num_bad_blocks += len(bad)
        fetch.copy_seconds += time.perf_counter() - started

    def _rows(self, num_blocks: int, layers: range | None, offset: int) -> torch.Tensor:
        assert self._host is not None
        num_bytes = num_blocks * self.engine.kv_cache.part_bytes(layers)
        return self._host[offset : offset + num_bytes].view(num_blocks, -1)

    def _hear(self) -> dict[str, Any]:
        assert self._peer.stdout is not None
        line = self._peer.stdout.readline()
        if not line:
            raise RuntimeError("the prefill process ended before it was ready")
        event: dict[str, Any] = json.loads(line)
        return event

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._peer.stdin is not None
        self._peer.stdin.write(json.dumps(command) + "\n")
        self._peer.stdin.flush()


def _as_tensor(memory: "np.typing.NDArray[np.uint8]") -> torch.Tensor:
    """View read-only memory as a tensor that is only read; torch would warn of it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(memory)
