"""Proves that a process reads another one's KV pool, also when that one dies meanwhile.

    python benchmarks/gpu/transfer/ipc_check.py [--device cuda] [--mib 64 256 1024]

On a GPU the pool is mapped by CUDA IPC; on cpu by shared memory, so that the same check runs
anywhere. Two processes beside this one: the owner, who is killed in the end, and the reader, whom
a fault on the device would take along. Prints one JSON line for each size. Needs torch only.
"""

import argparse
import base64
import json
import os
import selectors
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.harness.importable import missing_folders

sys.path.extend(missing_folders())

import torch

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.peer_pool import (
    PoolExport,
    PoolHandle,
    PoolKind,
    exportable_cache,
    open_peer_pool,
)

# Llama-3.1-8B: 2 MiB a block, 32 KiB a run.
LAYOUT = KvLayout(num_layers=32, block_size=16, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)
SPARE_BLOCKS = 3
NUM_REPEATS = 5
ANSWER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class IpcCheck:
    """What was found.

    Attributes:
        kind: how the pool was read.
        num_bytes: read in one go, in chunks as a transfer does.
        is_equal: whether all blocks, in another order, and single layers of them came as they were.
        finds_change: whether a block that changed after its digest was refused.
        read_gb_per_second: best of some reads, digests and writes not counted.
        verified_gb_per_second: best of some reads that were digested and written to the own pool.
        is_readable_after_death: whether blocks could still be read once the owner was killed.
        error: why not, if so.
    """

    kind: str
    num_bytes: int
    is_equal: bool
    finds_change: bool
    read_gb_per_second: float
    verified_gb_per_second: float
    is_readable_after_death: bool
    error: str = ""


def check_ipc(device: str, num_bytes: int) -> IpcCheck:
    """Run both processes.

    Raises:
        RuntimeError: one of them ended before it had said anything.
    """
    num_blocks = max(1, num_bytes // LAYOUT.block_bytes)
    owner, reader = (_start(role, device, num_blocks) for role in ("owner", "reader"))
    try:
        reader_in, owner_in = reader.stdin, owner.stdin
        assert reader_in is not None
        assert owner_in is not None
        ready = _hear(owner)
        _say(reader_in, ready)
        _hear(reader)  # it has read, and wants a block changed
        _say(owner_in, {"change": 0})
        _hear(owner)
        _say(reader_in, {})
        found = _hear(reader)
        owner.kill()
        owner.wait()
        _say(reader_in, {})
        try:
            found |= _hear(reader)
        except RuntimeError as error:
            found |= {"is_readable_after_death": False, "error": f"the reader died: {error}"}
        return IpcCheck(num_bytes=num_blocks * LAYOUT.block_bytes, **found)
    finally:
        for process in (owner, reader):
            process.kill()
            process.communicate()


def own(device: torch.device, num_blocks: int) -> None:
    """The owner: fills its pool, says where it is, changes a block when told to."""
    cache = exportable_cache(LAYOUT, num_blocks + SPARE_BLOCKS, device)
    _fill(cache)
    block_ids = list(range(num_blocks))
    digests = cache.digest_blocks(block_ids).numpy().tobytes()
    export = PoolExport(cache)
    handle = {field.name: getattr(export.handle, field.name) for field in fields(PoolHandle)}
    handle |= {
        "kind": export.handle.kind.value,
        "memory": base64.b64encode(export.handle.memory).decode(),
    }
    _say(sys.stdout, {"handle": handle, "digests": digests.hex()})
    for line in sys.stdin:
        block_id = json.loads(line)["change"]
        cache.tensor[0, 0, block_id, 0, 0, 0] += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        _say(sys.stdout, {})


def read(device: torch.device, num_blocks: int) -> None:
    """The reader: reads, verifies and writes; reads again once the owner is dead."""
    ready = json.loads(sys.stdin.readline())
    fields_of = ready["handle"]
    handle = PoolHandle(
        **fields_of
        | {"kind": PoolKind(fields_of["kind"]), "memory": base64.b64decode(fields_of["memory"])}
    )
    cache = KvCache(LAYOUT, num_blocks, device)
    pool = open_peer_pool(handle, cache)
    digests = torch.frombuffer(bytearray.fromhex(ready["digests"]), dtype=torch.uint8).view(-1, 16)
    ids = torch.randperm(num_blocks).tolist()
    step = max(1, pool.chunk_bytes // LAYOUT.block_bytes)

    def read_all() -> None:
        for start in range(0, num_blocks, step):
            pool.read(ids[start : start + step])

    def transfer_all() -> list[int]:
        found = cache.copy_blocks(pool.tensor, ids, ids, expected=digests[ids])
        return [ids[position] for position in found]

    is_equal = not transfer_all()
    if num_blocks <= 512:  # an 8B model's 8k tokens; beyond, twice the pool may be too much
        same = KvCache(LAYOUT, num_blocks + SPARE_BLOCKS, device)
        _fill(same)
        is_equal &= torch.equal(cache.tensor, same.tensor[:, :, :num_blocks])
        part = range(5, 9)
        some = ids[:4]
        is_equal &= torch.equal(pool.read(some, part).cpu(), same.read_blocks(some, part))
        del same
    read_seconds = min(_timed(read_all) for _ in range(NUM_REPEATS))
    verified_seconds = min(_timed(transfer_all) for _ in range(NUM_REPEATS))
    _say(sys.stdout, {})
    sys.stdin.readline()
    num_bytes = num_blocks * LAYOUT.block_bytes
    found = {
        "kind": pool.kind.value,
        "is_equal": is_equal,
        "finds_change": transfer_all() == [0],
        "read_gb_per_second": num_bytes / read_seconds / 1e9,
        "verified_gb_per_second": num_bytes / verified_seconds / 1e9,
    }
    _say(sys.stdout, found)
    sys.stdin.readline()
    try:
        is_readable = transfer_all() == [0]
        error = "" if is_readable else "other bytes came than before"
    except Exception as failure:
        is_readable, error = False, repr(failure)
    pool.close()
    _say(sys.stdout, {"is_readable_after_death": is_readable, "error": error})


def _fill(cache: KvCache) -> None:
    generator = torch.Generator(cache.device).manual_seed(4)
    for layer in range(LAYOUT.num_layers):  # a part at a time: the pool may be most of a GPU
        for kv in range(2):
            cache.tensor[kv, layer].normal_(generator=generator)
    if cache.device.type == "cuda":
        torch.cuda.synchronize(cache.device)


def _timed(run: Any) -> float:
    started = time.perf_counter()  # reads and writes are done when they return
    run()
    return time.perf_counter() - started


def _start(role: str, device: str, num_blocks: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--device", device, "--blocks", str(num_blocks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _say(stream: Any, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=stream, flush=True)


def _hear(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(ANSWER_SECONDS):
            raise RuntimeError(f"no answer within {ANSWER_SECONDS} s")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def main() -> None:
    """Check the sizes that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--role", choices=("owner", "reader"), help=argparse.SUPPRESS)
    parser.add_argument("--blocks", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
        {"owner": own, "reader": read}[options.role](torch.device(options.device), options.blocks)
        return
    for mib in options.mib:
        print(json.dumps(asdict(check_ipc(options.device, mib * 2**20))), flush=True)


if __name__ == "__main__":
    main()
