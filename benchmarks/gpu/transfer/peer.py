"""The other process of a transfer: a prefill engine whose KV somebody else fetches.

    python benchmarks/gpu/transfer/peer.py SCALE DEVICE SEED

Commands are JSON lines on stdin, events JSON lines on stdout; no network. Started by
`transfer_subject`. Says where blocks lie and what their digests are; KV itself stays in its pool,
where the consumer maps it, or goes through host memory that both map.
"""

import base64
import json
import queue
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.harness.importable import missing_folders

sys.path.extend(missing_folders())

import torch
from support.engine_driver import hash_block, make_request

from gpu.model.imported_sequences import BLOCK_SIZE, fill_random
from gpu.model.random_model import random_model
from gpu.model.shapes import SHAPES
from gpu.transfer.scale import TRANSFER_SCALES, TransferScale
from pagoda_engine import (
    ComputedBlocks,
    ComputedLayers,
    Engine,
    EngineConfig,
    SamplingParams,
    StepResult,
)
from pagoda_engine.cache.peer_pool import PeerPoolError, PoolExport, exportable_cache
from pagoda_engine.cache.shared_memory import SharedMemory, SharedMemoryError

Command = dict[str, Any]

GREEDY = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)


class Peer:
    """One engine, driven by commands."""

    def __init__(self, scale: TransferScale, device: torch.device, seed: int) -> None:
        self._scale = scale
        self._output_lock = threading.Lock()
        model = random_model(
            SHAPES[scale.shape],
            dtype=scale.dtype,
            device=device,
            seed=seed,
            max_positions=scale.max_model_len,
        )
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=scale.num_peer_blocks,
            max_num_batched_tokens=scale.max_model_len,
            max_model_len=scale.max_model_len,
            device=device.type,
            enable_prefix_caching=False,
            enforce_eager=True,
            num_layer_groups=scale.num_layer_groups,
        )
        self._kv_cache = exportable_cache(
            model.kv_layout(config.block_size), config.num_blocks, device
        )
        fill_random(self._kv_cache.tensor, seed + 1)
        self._engine = Engine(
            model,
            config,
            hash_block=hash_block,
            kv_cache=self._kv_cache,
            on_layers=self._on_layers,
        )
        self._host = _host_memory(scale.num_peer_blocks * self._kv_cache.block_bytes)
        self._host_end = 0
        self._prefills: dict[str, Command] = {}
        self._sent_layers: dict[tuple[str, int], int] = {}
        # One thread: what is sent arrives in order.
        self._sender = ThreadPoolExecutor(1)

    def run(self) -> None:
        """Serve until the input ends."""
        host = None if self._host is None else self._host.handle.decode()
        self._say({"event": "ready", "host": host, **self._exported()})
        commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
        while True:
            while not self._engine.has_work() or not commands.empty():
                command = commands.get()
                if command is None:
                    self._sender.shutdown()
                    return
                self._obey(command)
            self._report(self._engine.step())

    def _exported(self) -> dict[str, Any]:
        try:
            handle = PoolExport(self._kv_cache).handle
        except PeerPoolError as error:
            return {"error": str(error)}
        fields = {name: getattr(handle, name) for name in handle.__slots__}
        memory = base64.b64encode(handle.memory).decode()
        return {"handle": fields | {"kind": handle.kind.value, "memory": memory}}

    def _obey(self, command: Command) -> None:
        match command["op"]:
            case "send":
                self._sender.submit(self._send_all, command)
            case "prefill":
                self._prefills[command["id"]] = command
                request = make_request(
                    command["id"],
                    command["prompt"],
                    block_size=BLOCK_SIZE,
                    sampling=GREEDY,
                    prefill_only=True,
                )
                self._engine.add(request)
            case "release":
                del self._prefills[command["id"]]
                self._engine.release(command["id"])

    def _send_all(self, command: Command) -> None:
        block_ids = command["block_ids"]
        for start in range(0, len(block_ids), self._scale.blocks_per_message):
            some = block_ids[start : start + self._scale.blocks_per_message]
            self._send(command["id"], command["way"], start, some, None)
        self._say({"event": "sent", "id": command["id"]})

    def _on_layers(self, parts: tuple[ComputedLayers, ...]) -> None:
        for part in parts:
            command = self._prefills[part.sequence_id]
            if command["way"] != "none" and command["by_layers"]:
                layers = (part.first_layer, part.first_layer + part.num_layers)
                self._sent_layers[part.sequence_id, part.first_block] = layers[1]
                self._sender.submit(self._send_layers, command, part, layers)

    def _send_layers(self, command: Command, part: ComputedLayers, layers: tuple[int, int]) -> None:
        part.wait()
        self._send(command["id"], command["way"], part.first_block, part.block_ids, layers)

    def _report(self, result: StepResult) -> None:
        for output in result.outputs:
            if output.token_ids:
                token_id = output.token_ids[0]
                self._say({"event": "token", "id": output.sequence_id, "token_id": token_id})
        for computed in result.computed:
            command = self._prefills[computed.sequence_id]
            if command["way"] != "none":
                self._sender.submit(self._send_computed, command, computed)
        for output in result.outputs:
            if output.token_ids:
                self._sender.submit(self._say, {"event": "sent", "id": output.sequence_id})

    def _send_computed(self, command: Command, computed: ComputedBlocks) -> None:
        first_layer = self._sent_layers.pop((computed.sequence_id, computed.first_block), 0)
        num_layers = self._kv_cache.layout.num_layers
        layers = None if first_layer == 0 else (first_layer, num_layers)
        step = self._scale.blocks_per_message
        for start in range(0, len(computed.block_ids), step):
            some = computed.block_ids[start : start + step]
            first = computed.first_block + start
            self._send(command["id"], command["way"], first, some, layers)

    def _send(
        self,
        sequence_id: str,
        way: str,
        first_block: int,
        block_ids: Sequence[int],
        layers: tuple[int, int] | None,
    ) -> None:
        """Digest blocks where they are, or copy them to the host, and say so."""
        part = None if layers is None else range(*layers)
        event = {
            "event": "blocks",
            "id": sequence_id,
            "first_block": first_block,
            "block_ids": list(block_ids),
            "layers": layers,
        }
        if way == "host":
            rows, digests = self._kv_cache.read_blocks_with_digest(block_ids, part)
            event["offset"] = self._put(rows)
        else:
            digests = self._kv_cache.digest_blocks(block_ids, part)
        event["digests"] = digests.numpy().tobytes().hex()
        self._say(event)

    def _put(self, rows: torch.Tensor) -> int:
        """Copy rows into the host memory, round and round; returns where.

        A consumer that is a whole round behind reads something else, and its digests say so.
        """
        assert self._host is not None, "the consumer asked for memory that was not offered"
        start = self._host_end
        if start + rows.numel() > self._host.tensor.numel():
            start = 0
        self._host_end = start + rows.numel()
        self._host.tensor[start : self._host_end].view(rows.shape).copy_(rows)
        return start

    def _say(self, event: dict[str, Any]) -> None:
        with self._output_lock:
            print(json.dumps(event), flush=True)


def _host_memory(num_bytes: int) -> SharedMemory | None:
    try:
        return SharedMemory(num_bytes)
    except SharedMemoryError as error:
        print(error, file=sys.stderr)
        return None


def _read_commands(commands: "queue.SimpleQueue[Command | None]") -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put(None)


def main(arguments: list[str]) -> int:
    """Serve until stdin ends."""
    scale, device, seed = arguments
    Peer(TRANSFER_SCALES[scale], torch.device(device), int(seed)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
