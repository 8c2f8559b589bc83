"""Blocks for tests."""

import random

from pagoda_kvstore.block import Block, BlockKey, payload_digest

IDENTITY = b"identity-0123456"


def make_hash(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def make_key(name: str, identity: bytes = IDENTITY) -> BlockKey:
    return BlockKey(identity, make_hash(name))


def make_block(
    name: str, parent: str = "", *, num_bytes: int = 1000, identity: bytes = IDENTITY
) -> Block:
    payload = random.Random(name).randbytes(num_bytes)
    parent_hash = make_hash(parent) if parent else b""
    return Block(make_key(name, identity), parent_hash, payload_digest(payload), payload)
