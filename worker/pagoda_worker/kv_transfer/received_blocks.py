"""One message's blocks into the blocks reserved for them, if they are what their digests say.

Runs in a thread. What is verified is a copy of our own, whatever the producer does to its pool
meanwhile: the copy in the reserved blocks themselves where a GPU has mapped the pool, else one that
is written once it was verified.
"""

from collections.abc import Sequence

import numpy as np
import torch

from pagoda.rpc.v1 import kv_transfer_pb2
from pagoda_engine.cache import PeerPool, PeerPoolError, check_blocks, chunks
from pagoda_worker.errors import LeaseMismatchError
from pagoda_worker.kv_transfer.digests import DIGEST_BYTES, digest_blocks
from pagoda_worker.kv_transfer.pool_codec import DigestKind
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks


def take_blocks(
    blocks: ReservedBlocks,
    pool: PeerPool | None,
    digest: DigestKind,
    message: kv_transfer_pb2.PushBlocks,
) -> list[int] | None:
    """Read, verify and write. Returns indices whose digest did not match; None: fenced.

    Raises:
        LeaseMismatchError: the message does not fit the lease.
        PeerPoolError: its blocks cannot be read.
    """
    layers = _layers(blocks, message)
    part_bytes = blocks.part_bytes(layers)
    _check(blocks, message.blocks, part_bytes)
    try:
        if pool is not None and digest is DigestKind.MULTILINEAR and pool.tensor is not None:
            return _copy(blocks, pool.tensor, message.blocks, layers)
        return _write_chunks(blocks, pool, digest, message.blocks, layers)
    except PeerPoolError:
        if not blocks.is_open:  # the producer was lost, and its pool closed
            return None
        raise


def _layers(blocks: ReservedBlocks, message: kv_transfer_pb2.PushBlocks) -> range | None:
    if not message.num_layers:
        return None
    layers = range(message.first_layer, message.first_layer + message.num_layers)
    if layers.stop > blocks.num_layers:
        raise LeaseMismatchError(
            f"layers [{layers.start}, {layers.stop}) are not in [0, {blocks.num_layers})"
        )
    return layers


def _check(blocks: ReservedBlocks, parts: Sequence[kv_transfer_pb2.Block], part_bytes: int) -> None:
    if not parts:
        raise LeaseMismatchError("a message names no block, must name at least one")
    for part in parts:
        if not blocks.covers(part.index):
            raise LeaseMismatchError(
                f"block {part.index} is not in [{blocks.first_block}, {blocks.num_blocks})"
            )
        if part.num_bytes != part_bytes:
            raise LeaseMismatchError(
                f"block {part.index} has {part.num_bytes} bytes, must have {part_bytes}"
            )
        if len(part.digest) != DIGEST_BYTES:
            raise LeaseMismatchError(f"block {part.index} has no digest of {DIGEST_BYTES} bytes")
    if len({part.index for part in parts}) != len(parts):
        raise LeaseMismatchError("a block is named twice in one message")


def _payloads(parts: Sequence[kv_transfer_pb2.Block], part_bytes: int) -> torch.Tensor:
    rows = np.empty((len(parts), part_bytes), dtype=np.uint8)
    for row, part in zip(rows, parts, strict=True):
        if len(part.payload) != part_bytes:
            raise LeaseMismatchError(
                f"block {part.index} carries {len(part.payload)} bytes, and no pool was named"
            )
        row[:] = np.frombuffer(part.payload, dtype=np.uint8)
    return torch.from_numpy(rows)


def _copy(
    blocks: ReservedBlocks,
    source: torch.Tensor,
    parts: Sequence[kv_transfer_pb2.Block],
    layers: range | None,
) -> list[int] | None:
    """Copy from pool to pool; each byte is read once and written once."""
    source_ids = [part.pool_block_id for part in parts]
    check_blocks(source_ids, source.shape[2])
    indices = [part.index for part in parts]
    return blocks.copy(indices, source, source_ids, layers, expected=_digests(parts))


def _write_chunks(
    blocks: ReservedBlocks,
    pool: PeerPool | None,
    digest: DigestKind,
    parts: Sequence[kv_transfer_pb2.Block],
    layers: range | None,
) -> list[int] | None:
    """Copy from a pool or out of messages to memory of our own, a chunk at a time, and write."""
    part_bytes = blocks.part_bytes(layers)
    chunk_bytes = part_bytes * len(parts) if pool is None else pool.chunk_bytes
    bad: list[int] = []
    for some in chunks(len(parts), part_bytes, chunk_bytes):
        chunk = parts[some]
        rows = _payloads(chunk, part_bytes) if pool is None else _read(pool, blocks, chunk, layers)
        found = _write(blocks, digest, chunk, rows, layers)
        if found is None:
            return None
        bad += found
    return bad


def _read(
    pool: PeerPool,
    blocks: ReservedBlocks,
    parts: Sequence[kv_transfer_pb2.Block],
    layers: range | None,
) -> torch.Tensor:
    """Return ``[N, part_bytes]``: parts of a block one after the other, wherever they are."""
    num_parts = blocks.part_bytes(layers) // blocks.place_bytes if blocks.is_in_parts else 1
    for part in parts:
        if len(part.pool_part_ids) != num_parts - 1:
            raise LeaseMismatchError(
                f"block {part.index} names {1 + len(part.pool_part_ids)} places in the pool, must "
                f"name {num_parts}"
            )
    if not blocks.is_in_parts:
        return pool.read([part.pool_block_id for part in parts], layers)
    places = [place for part in parts for place in (part.pool_block_id, *part.pool_part_ids)]
    return pool.read(places).view(len(parts), -1)


def _write(
    blocks: ReservedBlocks,
    digest: DigestKind,
    parts: Sequence[kv_transfer_pb2.Block],
    rows: torch.Tensor,
    layers: range | None,
) -> list[int] | None:
    indices = [part.index for part in parts]
    if digest is DigestKind.MULTILINEAR:  # checked where the blocks go
        return blocks.write_if_equal(indices, rows, layers, expected=_digests(parts))
    rows = rows.cpu()  # what is written is what was digested
    found = digest_blocks(rows.numpy())
    is_good = [ours == part.digest for ours, part in zip(found, parts, strict=True)]
    bad = [index for index, ok in zip(indices, is_good, strict=True) if not ok]
    if bad:
        indices = [index for index, ok in zip(indices, is_good, strict=True) if ok]
        rows = rows[torch.tensor(is_good)]
    return bad if blocks.write(indices, rows, layers) else None


def _digests(parts: Sequence[kv_transfer_pb2.Block]) -> torch.Tensor:
    flat = bytearray().join(part.digest for part in parts)
    return torch.frombuffer(flat, dtype=torch.uint8).view(-1, DIGEST_BYTES)
