"""Where the tensors of a safetensors file lie, from its header.

Read here and not by the library, which does not tell the offsets: whoever wants the bytes in the
device's memory, and several reads in flight, has to know them. Reads no tensor.
"""

import json
import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from pagoda_engine.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Dtypes that weights may have."""

CODE_DTYPES = {
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
}
"""Dtypes that tensors of quantised weights may have beside those."""
PACKED_DTYPES = {"U8": torch.uint8}
"""Dtypes of what is not a number of its own."""

HEADER_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        path: the file.
        dtype: as the format names it.
        shape: of the tensor; it is contiguous.
        offset: of its first byte in the file.
        num_bytes: its size.
        shift: what the file has subtracted from each element, to be added again.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    shift: float = 0.0


def read_header(path: Path, file: BinaryIO) -> bytes:
    """Return the header; `file` then stands at the first tensor's first byte.

    Raises:
        CheckpointError: there is none, so it is another format.
    """
    length = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
    header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    if not header or len(header) != length:
        raise CheckpointError(path, "is no safetensors file: it has no header")
    return header


def stored_tensors(path: Path, header: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, in the order of the header.

    Raises:
        CheckpointError: the header is damaged, or a tensor ends after the file does.
    """
    start = HEADER_LENGTH_BYTES + len(header)
    size = path.stat().st_size
    tensors = {}
    try:
        for name, entry in json.loads(header).items():
            if name == "__metadata__":
                continue
            begin, end = map(operator.index, entry["data_offsets"])
            shape = tuple(map(operator.index, entry["shape"]))
            dtype = str(entry["dtype"])
            tensors[name] = StoredTensor(path, dtype, shape, start + begin, end - begin)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"  # its repr may have the whole header
        raise CheckpointError(path, f"is no safetensors file: its header has {what}") from error
    for name, tensor in tensors.items():
        _check(name, tensor, start, size)
    return tensors


def _check(name: str, tensor: StoredTensor, start: int, size: int) -> None:
    end = tensor.offset + tensor.num_bytes
    if not start <= tensor.offset <= end <= size:
        raise CheckpointError(
            tensor.path,
            f"is no safetensors file: {name} has bytes [{tensor.offset}, {end}), the file's "
            f"tensors [{start}, {size}); copy it again",
        )
    dtypes = DTYPES | CODE_DTYPES | PACKED_DTYPES
    dtype = dtypes.get(tensor.dtype)
    if dtype is not None and math.prod(tensor.shape) * dtype.itemsize != tensor.num_bytes:
        raise CheckpointError(
            tensor.path,
            f"is no safetensors file: {name} is {tensor.dtype} {list(tensor.shape)}, but has "
            f"{tensor.num_bytes} bytes",
        )
