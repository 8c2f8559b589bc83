"""GGUF files byte by byte, so that they can be wrong in any place."""

import struct
from collections.abc import Sequence
from pathlib import Path

UINT8, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 6, 7, 8, 9, 10


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: Sequence[int], type_id: int = 0, offset: int = 0) -> bytes:
    """`dims` innermost first, as the format has them."""
    return (
        text(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", type_id, offset)
    )


def head(
    fields: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    num_fields: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(fields) if num_fields is None else num_fields,
    )
    data = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join((*fields, *tensors))
    return data + bytes(-len(data) % 32)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path
