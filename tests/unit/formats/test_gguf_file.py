import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.gguf_bytes import (
    ARRAY,
    BOOL,
    FLOAT32,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    field,
    head,
    tensor,
    text,
    written,
)

from pagoda_formats.errors import FormatError
from pagoda_formats.gguf_file import MAX_ELEMENTS, read_gguf
from pagoda_formats.tensor_types import TENSOR_TYPES

ALIGNMENT = struct.pack("<I", 48)
NAMED = field("general.architecture", STRING, text("llama"))


def array(kind: int, count: int, data: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + data


def test_what_the_gguf_package_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_int32("a", -5)
    writer.add_uint64("b", 2**63)
    writer.add_bool("c", True)
    writer.add_array("d", [1.5, -2.0])
    writer.add_token_list(["a", "\u00e9", ""])
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("dense", values)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(path)
    assert found.metadata == {
        "general.architecture": "llama",
        "llama.attention.layer_norm_rms_epsilon": 1e-5,  # not 9.99999974e-06
        "a": -5,
        "b": 2**63,
        "c": True,
        "d": [1.5, -2.0],
        "tokenizer.ggml.tokens": ["a", "\u00e9", ""],
    }
    assert found.metadata["c"] is True
    dense, packed = found.tensors["dense"], found.tensors["packed"]
    assert (dense.shape, dense.type_name, dense.num_bytes) == ((2, 32), "F32", 256)
    assert (packed.shape, packed.type_name, packed.num_bytes) == ((2, 32), "Q8_0", 68)
    data = path.read_bytes()
    assert data[dense.offset :][: dense.num_bytes] == values.tobytes()
    assert data[packed.offset :][: packed.num_bytes] == blocks.tobytes()
    assert found.head_bytes == dense.offset


def test_types_are_those_of_the_gguf_package() -> None:
    sizes = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for type_id, kind in TENSOR_TYPES.items():
        assert sizes[type_id] == tuple(kind)


def test_an_unknown_type_of_tensor_is_named_by_its_number(tmp_path: Path) -> None:
    found = read_gguf(written(tmp_path, head([NAMED], [tensor("t", [7], type_id=99)])))
    assert found.tensors["t"].type_name == "type 99"


HUGE = 2**63
HOSTILE = {
    "empty": (b"", "does not begin with GGUF"),
    "another format": (b"PK\x03\x04" * 9, "does not begin with GGUF"),
    "only magic": (b"GGUF", "ends within version"),
    "version 1": (head(version=1), "version 1, must be 2 or 3"),
    "big-endian": (head(version=3 << 24), "big-endian"),
    "many fields": (head(num_fields=2**40), "number of metadata fields is 1099511627776"),
    "fields that are not there": (head([NAMED], num_fields=9), "ends within|there twice"),
    "many tensors": (head(num_tensors=2**40), "number of tensors is 1099511627776"),
    "tensors that are not there": (head(num_tensors=1000), "must have 1 to 4|ends within"),
    "long key": (head([struct.pack("<Q", HUGE)]), f"metadata key is {HUGE}"),
    "key beyond the end": (head([struct.pack("<Q", 60_000)]), "ends within a metadata key"),
    "string beyond the end": (
        head([field("k", STRING, struct.pack("<Q", 2**26))]),
        "ends within k",
    ),
    "long string": (head([field("k", STRING, struct.pack("<Q", HUGE))]), "length of k is"),
    "long array": (head([field("k", ARRAY, array(UINT8, HUGE, b""))]), "length of k is"),
    "array beyond the end": (
        head([field("k", ARRAY, array(UINT64, MAX_ELEMENTS, b""))]),
        "ends within k",
    ),
    "empty strings beyond the end": (
        head([field("k", ARRAY, array(STRING, MAX_ELEMENTS, b""))]),
        "ends within",
    ),
    "arrays in arrays": (
        head([field("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1, b"")))]),
        "unknown type 9",
    ),
    "unknown type": (head([field("k", 77, b"")]), "unknown type 77"),
    "the same key twice": (head([NAMED, NAMED]), "'general.architecture' is there twice"),
    "the same tensor twice": (head([], [tensor("t", [1]), tensor("t", [1])]), "t is there twice"),
    "no dims": (head([], [tensor("t", [])]), "0 dims"),
    "many dims": (head([], [tensor("t", [1] * 5)]), "5 dims"),
    "offset beyond the end": (head([], [tensor("t", [8], offset=2**40)]), "t ends at byte"),
    "offset at the limit": (head([], [tensor("t", [8], offset=2**64 - 1)]), "t ends at byte"),
    "a size that would wrap around": (head([], [tensor("t", [2**62, 2**62])]), "t ends at byte"),
    "half a block": (head([], [tensor("t", [33], type_id=8)]), "multiple of 32"),
    "no alignment": (
        head([field("general.alignment", UINT32, struct.pack("<I", 0))]),
        "general.alignment is 0",
    ),
    "alignment of text": (
        head([field("general.alignment", STRING, text("x"))]),
        "general.alignment is 'x'",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_ends_with_one_line_at_once(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    path = written(tmp_path, data)
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.raises(FormatError, match=message) as raised:
            read_gguf(path)
        seconds, (_, most) = time.thread_time() - started, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500 + len(str(path))
    assert seconds < 2
    assert most < 1 << 20


def test_arrays_have_a_budget_together(tmp_path: Path) -> None:
    size = MAX_ELEMENTS // 4
    fields = [field(f"k{i}", ARRAY, array(UINT8, size, bytes(size))) for i in range(5)]
    with pytest.raises(FormatError, match=f"over {MAX_ELEMENTS} elements up to 'k4'"):
        read_gguf(written(tmp_path, head(fields)))


def test_every_truncation_of_a_file_is_refused(tmp_path: Path) -> None:
    data = head(
        [
            NAMED,
            field("f", FLOAT32, struct.pack("<f", 0.1)),
            field("b", BOOL, b"\x01"),
            field("l", ARRAY, array(STRING, 2, text("a") + text("b"))),
        ],
        [tensor("t", [8])],
    ) + bytes(32)
    assert read_gguf(written(tmp_path, data)).metadata["f"] == 0.1
    for length in range(len(data)):
        with pytest.raises(FormatError):
            read_gguf(written(tmp_path, data[:length]))


def test_an_alignment_of_its_own_is_followed(tmp_path: Path) -> None:
    body = head([field("general.alignment", UINT32, ALIGNMENT)], [tensor("t", [8])])
    unpadded = body.rstrip(b"\0")
    found = read_gguf(written(tmp_path, body + bytes(128)))
    assert found.tensors["t"].offset % 48 == 0
    assert found.tensors["t"].offset >= len(unpadded)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(FormatError, match="cannot be read"):
            read_gguf(path)
