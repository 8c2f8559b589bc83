"""What a sentencepiece model file says: a protobuf message, read as far as encoding needs it.

Knows the wire format and the numbers of the fields. Knows nothing of tokenizer.json.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagoda_runtime.errors import ModelFolderError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces."""
UNIGRAM, BPE = 1, 2
"""Types of models."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Value = int | bytes


class WireError(Exception):
    """The bytes are no protobuf message, or not this one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencepieceModel:
    """One file's.

    Attributes:
        pieces: by id.
        kind: UNIGRAM, BPE, or another number.
        bos_id: -1 for none.
        eos_id: alike.
        normalisation: its name, "identity" or "nmt_nfkc" for example.
        charsmap: what normalises a text, compiled; b"": nothing does.
        adds_prefix: a space precedes every text.
        strips_spaces: spaces at both ends go, and of several within one stays.
        marks_spaces: they are written as U+2581.
        has_suffix: the space that is added follows the text.
        denormalises: texts are changed when tokens are decoded.
    """

    pieces: tuple[Piece, ...]
    kind: int
    bos_id: int
    eos_id: int
    normalisation: str
    charsmap: bytes
    adds_prefix: bool
    strips_spaces: bool
    marks_spaces: bool
    has_suffix: bool
    denormalises: bool


def read_model(path: Path, data: bytes) -> SentencepieceModel:
    """Read a model.

    Args:
        path: for errors.
        data: the file's bytes.

    Raises:
        ModelFolderError: it is none.
    """
    try:
        pieces, last = [], {}
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(_of_bytes(value)))
            else:
                last[number] = value
        trainer, normaliser, denormaliser = (
            dict(_fields(_of_bytes(last.get(number, b"")))) for number in (2, 3, 5)
        )
        if not pieces:
            raise WireError("it has no pieces")
        if 2 not in last:
            raise WireError("it has no trainer_spec: is it cut off?")
        return SentencepieceModel(
            pieces=tuple(pieces),
            kind=_of_int(trainer.get(3, UNIGRAM)),
            bos_id=_signed(trainer.get(41, 1)),
            eos_id=_signed(trainer.get(42, 2)),
            normalisation=_of_bytes(normaliser.get(1, b"")).decode(),
            charsmap=_of_bytes(normaliser.get(2, b"")),
            adds_prefix=bool(_of_int(normaliser.get(3, 1))),
            strips_spaces=bool(_of_int(normaliser.get(4, 1))),
            marks_spaces=bool(_of_int(normaliser.get(5, 1))),
            has_suffix=bool(_of_int(trainer.get(24, 0))),
            denormalises=bool(denormaliser.get(2)),
        )
    except (WireError, UnicodeDecodeError, struct.error) as error:
        raise ModelFolderError(
            f"{path} is neither a sentencepiece model nor a file of tiktoken's: {error}"
        ) from error


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text = _of_bytes(fields.get(1, b"")).decode()
    (score,) = struct.unpack("<f", _of_bytes(fields.get(2, bytes(4))))
    return Piece(text, score, _of_int(fields.get(3, NORMAL)))


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the numbers and values of a message's fields; fixed ones as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if not tag >> 3:
            raise WireError(f"byte {at}: no field has the number 0")
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise WireError(f"byte {at}: no field has the wire type {kind}")
        if size > len(data) - at:
            raise WireError(f"byte {at}: a field of {size} bytes goes beyond the end")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError(f"byte {at}: a number does not end")


def _of_int(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("a number is no number")
    return value


def _signed(value: Value) -> int:
    number = _of_int(value)
    return number - (1 << 64) if number >> 63 else number


def _of_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("a field of bytes is a number")
    return value
