"""The head of a GGUF file: its metadata, and where its tensors lie. Reads no tensor.

A file is anybody's: every count, length and offset is held against the file's size and against
budgets before memory is taken for it, so that the worst file costs a bounded time and one line.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pagoda_formats.errors import FormatError
from pagoda_formats.tensor_types import TENSOR_TYPES

SUFFIX = ".gguf"
MAX_FIELDS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ELEMENTS = 4 << 20
"""Of all arrays together; the largest vocabularies in use have 1.5 million with their merges."""
MAX_STRING_BYTES = 128 << 20
"""Of all strings together; those vocabularies have 20 MB."""
MAX_NAME_BYTES = 1 << 16

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMS = 4
_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
_SCALARS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Formats of `struct` by type of value, without the byte order, which is little."""

Scalar = Any  # int, float, bool or str
Value = Scalar | list[Scalar]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor.

    Attributes:
        type_id: see TENSOR_TYPES, which may not have it.
        shape: outermost dim first, so that the last one is contiguous.
        offset: of its first byte in the file; all its bytes are there.
        num_bytes: its size; 0 for an unknown type.
    """

    type_id: int
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def type_name(self) -> str:
        """Name of the type, or its number where it is unknown."""
        known = TENSOR_TYPES.get(self.type_id)
        return known.name if known is not None else f"type {self.type_id}"


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What the head of a file says.

    Attributes:
        path: the file.
        metadata: values by key. A float32 that stands alone is the shortest decimal number that
            rounds to it, as it was before it was stored.
        tensors: by name, in the order of the file.
        head_bytes: where the tensors begin.
    """

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    head_bytes: int


def is_gguf(path: Path) -> bool:
    """Tell by its name whether a model is a GGUF file."""
    return path.suffix.lower() == SUFFIX


def read_gguf(path: Path) -> GgufFile:
    """Read the head of a file.

    Raises:
        FormatError: it cannot be read, is no GGUF file of version 2 or 3, is damaged, or has more
            than any real one.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file).read()
    except OSError as error:
        raise FormatError(path, f"cannot be read: {error.strerror}") from error


class _Reader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = path.stat().st_size
        self._num_elements = self._num_string_bytes = 0

    def read(self) -> GgufFile:
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise FormatError(self._path, "is no GGUF file: it does not begin with GGUF")
        version = self._integer("I", "version")
        if version not in _VERSIONS:
            if version & 0xFFFF == 0:
                raise FormatError(self._path, "is a big-endian GGUF file, must be little-endian")
            raise FormatError(self._path, f"is GGUF version {version}, must be 2 or 3")
        num_tensors = self._count("number of tensors", MAX_TENSORS)
        num_fields = self._count("number of metadata fields", MAX_FIELDS)
        metadata = self._metadata(num_fields)
        infos = self._tensor_infos(num_tensors)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT:
            raise self._damaged(f"general.alignment is {alignment!r}")
        start = -(-self._file.tell() // alignment) * alignment
        tensors = {name: self._placed(name, *info, start) for name, info in infos.items()}
        return GgufFile(self._path, metadata, tensors, start)

    def _metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._string("a metadata key", MAX_NAME_BYTES)
            if key in metadata:
                raise self._damaged(f"metadata field {key!r} is there twice")
            metadata[key] = self._value(key, self._integer("I", f"type of {key}"))
        return metadata

    def _value(self, key: str, kind: int) -> Value:
        if kind == _STRING:
            return self._string(key)
        if kind != _ARRAY:
            (value,) = self._scalars(key, kind, 1)
            return _shortest(value) if kind == _FLOAT32 else value
        element = self._integer("I", f"type of {key}")
        count = self._count(f"length of {key}", MAX_ELEMENTS)
        self._num_elements += count
        if self._num_elements > MAX_ELEMENTS:
            raise self._damaged(f"its arrays have over {MAX_ELEMENTS} elements up to {key!r}")
        if element == _STRING:
            return [self._string(key) for _ in range(count)]
        return self._scalars(key, element, count)

    def _scalars(self, key: str, kind: int, count: int) -> list[Scalar]:
        code = _SCALARS.get(kind)
        if code is None:  # arrays of arrays, too: no model has one
            raise self._damaged(f"metadata field {key!r} has values of unknown type {kind}")
        values = struct.unpack(f"<{count}{code}", self._bytes(count * struct.calcsize(code), key))
        if kind == _BOOL:
            return [value != 0 for value in values]
        return list(values)

    def _tensor_infos(self, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        infos = {}
        for _ in range(count):
            name = self._string("name of a tensor", MAX_NAME_BYTES)
            if name in infos:
                raise self._damaged(f"tensor {name} is there twice")
            num_dims = self._integer("I", name)
            if not 0 < num_dims <= _MAX_DIMS:
                raise self._damaged(f"tensor {name} has {num_dims} dims, must have 1 to 4")
            dims = struct.unpack(f"<{num_dims}Q", self._bytes(8 * num_dims, name))
            type_id = self._integer("I", name)
            infos[name] = dims[::-1], type_id, self._integer("Q", name)
        return infos

    def _placed(
        self, name: str, shape: tuple[int, ...], type_id: int, offset: int, start: int
    ) -> GgufTensor:
        kind = TENSOR_TYPES.get(type_id)
        num_bytes = 0
        if kind is not None:
            if shape[-1] % kind.block_elements:
                raise self._damaged(
                    f"rows of tensor {name} have {shape[-1]} elements, {kind.name} needs a "
                    f"multiple of {kind.block_elements}"
                )
            num_bytes = math.prod(shape) // kind.block_elements * kind.block_bytes
        end = start + offset + num_bytes
        if end > self._size:
            raise self._damaged(
                f"tensor {name} ends at byte {end}, the file at {self._size}; copy it again"
            )
        return GgufTensor(type_id, shape, start + offset, num_bytes)

    def _string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self._count(f"length of {what}", limit)
        self._num_string_bytes += length
        if self._num_string_bytes > MAX_STRING_BYTES:
            raise self._damaged(f"its strings have over {MAX_STRING_BYTES} bytes up to {what!r}")
        # Half a character in a token is a real thing (of broken converters); nothing is decided
        # by it, so it need not be refused.
        return self._bytes(length, what).decode("utf-8", "replace")

    def _count(self, what: str, limit: int) -> int:
        count = self._integer("Q", what)
        if count > limit:
            raise self._damaged(f"{what} is {count}, must be {limit} or less")
        return count

    def _integer(self, code: str, what: str) -> int:
        value: int = struct.unpack("<" + code, self._bytes(struct.calcsize(code), what))[0]
        return value

    def _bytes(self, count: int, what: str) -> bytes:
        # Not before the file is known to have them: `read` takes memory for what it is asked for.
        if count > 4096 and self._file.tell() + count > self._size:
            raise self._damaged(f"it ends within {what}")
        data = self._file.read(count)
        if len(data) != count:
            raise self._damaged(f"it ends within {what}")
        return data

    def _damaged(self, reason: str) -> FormatError:
        shown = reason if len(reason) <= 300 else reason[:300] + "..."
        return FormatError(self._path, f"is no sound GGUF file: {shown}")


def _shortest(value: float) -> float:
    """Return the decimal number of fewest digits that a float32 is the nearest to."""
    if not math.isfinite(value):
        return value
    for digits in range(1, 9):
        shorter = float(f"{value:.{digits}g}")
        if abs(shorter) < 3.4e38 and struct.unpack("<f", struct.pack("<f", shorter))[0] == value:
            return shorter
    return float(f"{value:.9g}")
