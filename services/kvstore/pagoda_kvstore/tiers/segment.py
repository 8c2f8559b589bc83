"""The file format of the NVMe tier: append-only segments that describe themselves.

A segment holds blocks of one KV identity and one size, so record i lies at a known offset and a
damaged record hides no other. All integers little endian:

    segment header, 64 bytes: magic "PGDASEG1" | version u16 | 6 zero bytes | kv_identity 16
                              | block_bytes u64 | sequence u64 | 8 zero bytes | XXH3-64 of the 56
                              bytes before
    record, 64 + block_bytes: magic "PBLK" | length u32 | block hash 16 | parent hash 16 (zeros =
    none)
                              | XXH3-128 of the payload 16 | XXH3-64 of the 56 bytes before |
                              payload

Writing is one write per record, so a killed process leaves at most one torn record, at the end.
"""

import errno
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pagoda_kvstore.block import HASH_BYTES, Block, BlockKey
from pagoda_kvstore.errors import SegmentFormatError

SUFFIX = ".seg"
HEADER_BYTES = 64
RECORD_HEADER_BYTES = 64

_MAGIC = b"PGDASEG1"
_VERSION = 1
_RECORD_MAGIC = b"PBLK"
_HEADER = struct.Struct("<8sH6x16sQQ8x")
_RECORD = struct.Struct("<4sI16s16s16s")
_CHECKSUM = struct.Struct("<Q")
_NO_PARENT = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment holds."""

    kv_identity: bytes
    block_bytes: int
    sequence: int  # segments are dropped in this order

    @property
    def stride(self) -> int:
        """Bytes of one record."""
        return RECORD_HEADER_BYTES + self.block_bytes

    def offset(self, slot: int) -> int:
        """Where record `slot` begins."""
        return HEADER_BYTES + slot * self.stride

    def encode(self) -> bytes:
        """Return the header's 64 bytes."""
        return _sealed(
            _HEADER.pack(_MAGIC, _VERSION, self.kv_identity, self.block_bytes, self.sequence)
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One record's header: where a block lies and what it is."""

    slot: int
    block_hash: bytes
    parent_hash: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """What a scan found. Bytes past the last whole slot are a torn tail."""

    header: SegmentHeader
    records: tuple[Record, ...]
    num_slots: int
    num_bad_records: int
    num_torn_bytes: int


def encode_record_header(block: Block) -> bytes:
    """Return the 64 bytes before a block's payload."""
    parent = block.parent_hash or _NO_PARENT
    return _sealed(
        _RECORD.pack(_RECORD_MAGIC, len(block.payload), block.key.block_hash, parent, block.digest)
    )


def decode_record_header(data: bytes, slot: int, block_bytes: int) -> Record | None:
    """Return a record's header, or None if these bytes are none."""
    if not _is_sealed(data, RECORD_HEADER_BYTES):
        return None
    magic, length, block_hash, parent_hash, digest = _RECORD.unpack_from(data)
    if magic != _RECORD_MAGIC or length != block_bytes:
        return None
    return Record(slot, block_hash, b"" if parent_hash == _NO_PARENT else parent_hash, digest)


def scan(path: Path) -> SegmentScan:
    """Read every header of a segment; payloads are not read.

    Raises:
        SegmentFormatError: it is no segment of this version, or its header is damaged.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        header = _decode_header(path, os.pread(fd, HEADER_BYTES, 0))
        num_slots, num_torn_bytes = divmod(os.fstat(fd).st_size - HEADER_BYTES, header.stride)
        found = [
            decode_record_header(
                os.pread(fd, RECORD_HEADER_BYTES, header.offset(slot)), slot, header.block_bytes
            )
            for slot in range(num_slots)
        ]
    finally:
        os.close(fd)
    records = tuple(record for record in found if record is not None)
    return SegmentScan(header, records, num_slots, num_slots - len(records), num_torn_bytes)


def read_blocks(path: Path, header: SegmentHeader, slots: Sequence[int]) -> list[Block | None]:
    """Return the blocks in `slots`, payloads unchecked; None where a record's header is damaged.

    Raises:
        OSError: it cannot be read.
    """
    blocks: list[Block | None] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        for slot in slots:
            data = os.pread(fd, header.stride, header.offset(slot))
            record = decode_record_header(data[:RECORD_HEADER_BYTES], slot, header.block_bytes)
            if record is None:
                blocks.append(None)
                continue
            key = BlockKey(header.kv_identity, record.block_hash)
            blocks.append(Block(key, record.parent_hash, record.digest, data[RECORD_HEADER_BYTES:]))
    finally:
        os.close(fd)
    return blocks


class SegmentWriter:
    """Appends records to one segment file. Used by one thread."""

    def __init__(self, path: Path, header: SegmentHeader, num_slots: int | None = None) -> None:
        """Create the file, or with `num_slots` continue one after its last whole slot."""
        self.path, self.header = path, header
        self.num_slots = num_slots or 0
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if num_slots is None else 0)
        self._fd = os.open(path, flags, 0o600)
        if num_slots is None:
            try:
                _write_all(self._fd, [header.encode()], 0)
            except OSError:
                os.close(self._fd)
                raise

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self.header.offset(self.num_slots)

    def append(self, block: Block) -> int:
        """Write one record and return its slot.

        Raises:
            OSError: it could not be written (no space left); the file is as before.
        """
        offset = self.num_bytes
        try:
            _write_all(self._fd, [encode_record_header(block), block.payload], offset)
        except OSError:
            os.ftruncate(self._fd, offset)
            raise
        self.num_slots += 1
        return self.num_slots - 1

    def close(self) -> None:
        """Hand what was written to the device and close the file."""
        try:
            os.fdatasync(self._fd)
        finally:
            os.close(self._fd)


def _write_all(fd: int, parts: Sequence[bytes], offset: int) -> None:
    """Write at once. The device takes a part only where it has no room for all of it."""
    num_bytes = sum(map(len, parts))
    written = os.pwritev(fd, parts, offset)
    if written != num_bytes:
        raise OSError(errno.ENOSPC, f"wrote {written} of {num_bytes} bytes")


def _decode_header(path: Path, data: bytes) -> SegmentHeader:
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        raise SegmentFormatError(path, "no segment header")
    if not _is_sealed(data, HEADER_BYTES):
        raise SegmentFormatError(path, "header checksum does not match")
    _, version, kv_identity, block_bytes, sequence = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise SegmentFormatError(path, f"version {version}, this kvstore reads {_VERSION}")
    return SegmentHeader(kv_identity, block_bytes, sequence)


def _sealed(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(data))


def _is_sealed(data: bytes, num_bytes: int) -> bool:
    if len(data) < num_bytes:
        return False
    body = data[: num_bytes - _CHECKSUM.size]
    (checksum,) = _CHECKSUM.unpack_from(data, len(body))
    return bool(xxhash.xxh3_64_intdigest(body) == checksum)
