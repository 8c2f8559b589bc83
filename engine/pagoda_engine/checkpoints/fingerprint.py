"""What makes two model folders the same model: a digest over configuration and weights.

Knows files. Knows nothing of what the tensors mean.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from pagoda_engine.checkpoints.safetensors_header import read_header, stored_tensors

FINGERPRINT_BYTES = 16
FULL_CONTENT_BYTES = 256 << 20
"""Weights up to this size in all are read as a whole."""

_CHUNK_BYTES = 64 << 10
_NUM_SAMPLES = 64


def fingerprint(config_path: Path, weight_paths: Sequence[Path], differs_by: bytes = b"") -> bytes:
    """Return 16 bytes of BLAKE2b that differ when anything differs that changes the KV of a token.

    Covered are ``config.json`` byte for byte and, for every safetensors file in order of name, its
    name, size and header, then its contents: all of them if the files are at most 256 MiB together.
    Of larger ones 64 KiB are read at the start of every tensor and at 64 evenly spaced offsets of
    each file, so that it takes seconds, not minutes; weights that differ only between those chunks
    are taken for the same.

    Args:
        config_path: the configuration.
        weight_paths: the weights.
        differs_by: what else changes the KV, and is chosen by who loads the model.

    Raises:
        CheckpointError: a file is not in safetensors format.
    """
    state = hashlib.blake2b(b"pagoda.fingerprint.v1", digest_size=FINGERPRINT_BYTES)
    _add(state, config_path.read_bytes())
    if differs_by:
        _add(state, differs_by)
    is_full = sum(path.stat().st_size for path in weight_paths) <= FULL_CONTENT_BYTES
    for path in sorted(weight_paths, key=lambda path: path.name):
        size = path.stat().st_size
        _add(state, path.name.encode())
        _add(state, str(size).encode())
        with path.open("rb") as file:
            header = read_header(path, file)
            _add(state, header)
            begins = [tensor.offset for tensor in stored_tensors(path, header).values()]
            _add_contents(state, file, size, begins, is_full=is_full)
    return state.digest()


def fingerprint_of_file(
    path: Path, head_bytes: int, begins: Iterable[int], differs_by: bytes = b""
) -> bytes:
    """Return as much of a model that is one file; see `fingerprint`, which says what is covered.

    Its name is not: it is no part of what such a file refers to.

    Args:
        path: the file.
        head_bytes: read whole, as the configuration is part of it.
        begins: where its tensors begin.
        differs_by: see `fingerprint`.
    """
    state = hashlib.blake2b(b"pagoda.fingerprint.file.v1", digest_size=FINGERPRINT_BYTES)
    _add(state, differs_by)
    size = path.stat().st_size
    _add(state, str(size).encode())
    with path.open("rb") as file:
        _add(state, file.read(head_bytes))
        _add_contents(state, file, size, begins, is_full=size <= FULL_CONTENT_BYTES)
    return state.digest()


def _add_contents(
    state: hashlib.blake2b, file: BinaryIO, size: int, begins: Iterable[int], *, is_full: bool
) -> None:
    """Add what follows, all of it or samples."""
    if is_full:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
        return
    start = file.tell()
    spaced = (start + (size - start) * i // _NUM_SAMPLES for i in range(_NUM_SAMPLES))
    for offset in sorted({*begins, *spaced}):
        file.seek(offset)
        state.update(file.read(_CHUNK_BYTES))


def _add(state: hashlib.blake2b, data: bytes) -> None:
    state.update(len(data).to_bytes(8, "little"))
    state.update(data)
