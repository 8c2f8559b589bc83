"""Block hashes: the identity of KV across processes, machines and restarts.

Equal hash means equal KV; nothing else does. So the chain starts at a root that covers everything
which makes KV reusable: the KV identity (model fingerprint, dtype, layout, block size), the adapter
and the tenant's salt.
"""

import functools
import hashlib
import struct
from collections.abc import Callable, Sequence

import numpy as np

HASH_BYTES = 16


def kv_identity(*, fingerprint: bytes, layout: str) -> bytes:
    """Return 16 bytes that are equal only if two pools could swap blocks.

    Args:
        fingerprint: of the model's weights and configuration.
        layout: dtype, shape and block size of one KV block, as the engine names it.
    """
    return _digest(b"pagoda.kv_identity.v1", fingerprint, layout.encode())


@functools.lru_cache(maxsize=1024)
def cache_root(*, kv_identity: bytes, cache_salt: bytes, adapter: str = "") -> bytes:
    """Return the parent hash of a chain's first block.

    Args:
        kv_identity: see `kv_identity`.
        cache_salt: derived from the tenant, so that tenants never share blocks unless told to.
        adapter: digest of the LoRA adapter's content in hexadecimal; empty for the base model.
    """
    return _digest(b"pagoda.cache_root.v1", kv_identity, cache_salt, adapter.encode())


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return BLAKE2b-128 of the parent's hash and the block's token ids (uint32, little endian)."""
    return hashlib.blake2b(parent + packed_tokens(token_ids), digest_size=HASH_BYTES).digest()


def hash_prompt(root: bytes, token_ids: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """Return one hash for each full block of a prompt; a partly filled last block has none."""
    tokens = packed_tokens(token_ids)
    stride = 4 * block_size
    parent, hashes = root, []
    for start in range(0, len(tokens) - stride + 1, stride):
        parent = hashlib.blake2b(
            parent + tokens[start : start + stride], digest_size=HASH_BYTES
        ).digest()
        hashes.append(parent)
    return tuple(hashes)


def split_hashes(packed: bytes) -> tuple[bytes, ...]:
    """Return the hashes that a protobuf `bytes` field holds back to back.

    Raises:
        ValueError: the length is not a multiple of 16 bytes.
    """
    if len(packed) % HASH_BYTES:
        raise ValueError(f"packed hashes have {len(packed)} bytes, not a multiple of {HASH_BYTES}")
    return tuple(packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES))


_READ_BY_STRUCT = (list, tuple)


@functools.lru_cache(maxsize=64)  # blocks are of one size, prompts of any
def _packer(num_tokens: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{num_tokens}I").pack


def packed_tokens(token_ids: Sequence[int]) -> bytes:
    """Return token ids as uint32, little endian."""
    if isinstance(token_ids, _READ_BY_STRUCT):  # numpy takes three times as long to read them
        return _packer(len(token_ids))(*token_ids)
    return np.asarray(token_ids, dtype="<u4").tobytes()


def _digest(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in parts:  # lengths keep ("ab", "c") apart from ("a", "bc")
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
