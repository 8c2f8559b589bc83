"""Protobuf messages <-> the store's own types. Checks everything a peer may send."""

from collections.abc import Iterable, Sequence

from pagoda.rpc.v1 import kv_event_pb2, kv_store_pb2
from pagoda_kvstore.block import DIGEST_BYTES, HASH_BYTES, Block, BlockKey
from pagoda_kvstore.change_log import TierName
from pagoda_kvstore.errors import InvalidBlockRequestError
from pagoda_kvstore.store import FoundBlock

MAX_HASHES = 65_536

TIERS = {TierName.CPU: kv_event_pb2.TIER_CPU, TierName.NVME: kv_event_pb2.TIER_NVME}


def decode_hashes(kv_identity: bytes, packed: bytes) -> tuple[bytes, ...]:
    """Return the block hashes of a request.

    Raises:
        InvalidBlockRequestError: a length is wrong or there are too many.
    """
    _check_length("length of kv_identity", kv_identity, HASH_BYTES)
    if len(packed) % HASH_BYTES:
        raise InvalidBlockRequestError(
            "length of block_hashes", len(packed), f"a multiple of {HASH_BYTES}"
        )
    if len(packed) > MAX_HASHES * HASH_BYTES:
        num_hashes = len(packed) // HASH_BYTES
        raise InvalidBlockRequestError(
            "number of block_hashes", num_hashes, f"at most {MAX_HASHES}"
        )
    return tuple(packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES))


def decode_put(request: kv_store_pb2.PutRequest) -> list[Block]:
    """Return the blocks of one message of a Put.

    Raises:
        InvalidBlockRequestError: a length is wrong.
    """
    _check_length("length of kv_identity", request.kv_identity, HASH_BYTES)
    return [_decode_block(request.kv_identity, block) for block in request.blocks]


def encode_found(group: Sequence[FoundBlock]) -> kv_store_pb2.GetResponse:
    """Return one message of a Get."""
    response = kv_store_pb2.GetResponse()
    for found in group:
        response.blocks.add(
            block_hash=found.block.key.block_hash,
            digest=found.block.digest,
            payload=found.block.payload,
            tier=TIERS[found.tier],
        )
    return response


def encode_tiers(tiers: Iterable[TierName]) -> kv_store_pb2.MatchResponse:
    """Return the answer to a Match."""
    return kv_store_pb2.MatchResponse(tiers=[TIERS[tier] for tier in tiers])


def _decode_block(kv_identity: bytes, block: kv_store_pb2.PutBlock) -> Block:
    _check_length("length of block_hash", block.block_hash, HASH_BYTES)
    _check_length("length of digest", block.digest, DIGEST_BYTES)
    if block.parent_hash:
        _check_length("length of parent_hash", block.parent_hash, HASH_BYTES)
    if not block.payload:
        raise InvalidBlockRequestError("length of payload", 0, "at least 1")
    return Block(
        BlockKey(kv_identity, block.block_hash), block.parent_hash, block.digest, block.payload
    )


def _check_length(field: str, value: bytes, expected: int) -> None:
    if len(value) != expected:
        raise InvalidBlockRequestError(field, len(value), f"{expected} bytes")
