"""Parts of blocks as the messages of a push. Runs in threads; knows no calls and no leases."""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from pagoda.rpc.v1 import kv_transfer_pb2
from pagoda_engine import KvCache
from pagoda_engine.cache import chunks
from pagoda_worker.kv_transfer.base import MESSAGE_BYTES
from pagoda_worker.kv_transfer.pool_codec import DigestKind

POOL_MESSAGE_BYTES = {DigestKind.XXH3: 4 * 2**20, DigestKind.MULTILINEAR: 256 * 2**20}
"""KV that one message without payloads is about: enough that its own cost does not show."""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Some layers (None: all) of consecutive logical blocks, and where they are in our pool."""

    first_block: int
    block_ids: tuple[int, ...]
    layers: range | None


def split_part(
    kv_cache: KvCache, part: BlockPart, digest: DigestKind, *, is_inline: bool
) -> Iterator[BlockPart]:
    """Cut a part so that each message is about as much as it should be, at least one block."""
    limit = MESSAGE_BYTES if is_inline else POOL_MESSAGE_BYTES[digest]
    for some in chunks(len(part.block_ids), kv_cache.part_bytes(part.layers), limit):
        yield BlockPart(part.first_block + some.start, part.block_ids[some], part.layers)


def encode_part(
    kv_cache: KvCache, part: BlockPart, digest: DigestKind, *, is_inline: bool
) -> kv_transfer_pb2.PushRequest:
    """Digest blocks, and read them if they travel inline."""
    message = kv_transfer_pb2.PushBlocks()
    if part.layers is not None:
        message.first_layer, message.num_layers = part.layers.start, len(part.layers)
    num_bytes = kv_cache.part_bytes(part.layers)
    found = _digests_and_payloads(kv_cache, part, digest, is_inline=is_inline)
    indices = range(part.first_block, part.first_block + len(part.block_ids))
    for index, block_id, (block_digest, payload) in zip(
        indices, part.block_ids, found, strict=True
    ):
        added = message.blocks.add(
            index=index,
            digest=block_digest,
            payload=payload,
            num_bytes=num_bytes,
            pool_block_id=block_id,
        )
        if part.layers is None and not is_inline:
            further = kv_cache.places_of([block_id])[0][1:]
            added.pool_part_ids.extend(max(place, 0) for place in further)
    return kv_transfer_pb2.PushRequest(blocks=message)


def _digests_and_payloads(
    kv_cache: KvCache, part: BlockPart, digest: DigestKind, *, is_inline: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield both for each block; the payload is empty unless it travels inline."""
    if digest is DigestKind.XXH3:
        for row in kv_cache.host_rows(part.block_ids, part.layers):
            yield xxhash.xxh3_128_digest(row.data), row.tobytes() if is_inline else b""
    elif is_inline:
        rows, digests = kv_cache.read_blocks_with_digest(part.block_ids, part.layers)
        for found, row in zip(digests.numpy(), rows.numpy(), strict=True):
            yield found.tobytes(), row.tobytes()
    else:
        for found in kv_cache.digest_blocks(part.block_ids, part.layers).numpy():
            yield found.tobytes(), b""
