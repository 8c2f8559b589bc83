import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pagoda_engine import CheckpointError
from pagoda_engine.checkpoints.safetensors_header import read_header, stored_tensors

GOOD: dict[str, Any] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def header_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return read_header(path, file)


def write(path: Path, header: Any, num_data_bytes: int = 24) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(num_data_bytes))
    return path


def test_offsets_lead_to_what_the_library_wrote(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    tensors = {
        "a": torch.rand(3, 5),
        "b": torch.rand(7).bfloat16(),
        "scalar": torch.tensor(3.0),
        "ids": torch.arange(4),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    found = stored_tensors(path, header_of(path))
    data = path.read_bytes()
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        stored = found[name]
        assert stored.shape == tensor.shape
        flat = tensor.view(-1).view(torch.uint8).numpy().tobytes()
        assert data[stored.offset : stored.offset + stored.num_bytes] == flat
    assert [found[name].dtype for name in tensors] == ["F32", "BF16", "F32", "I64"]


@pytest.mark.parametrize("data", [b"", b"\x10\0\0\0\0\0\0\0{}", b"\xff" * 20])
def test_other_formats_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "weights"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is no safetensors file: it has no header"):
        header_of(path)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {**GOOD, "data_offsets": [0]},
        {**GOOD, "data_offsets": None},
        {**GOOD, "data_offsets": [0.0, 24.0]},
        {**GOOD, "shape": ["x"]},
        {**GOOD, "shape": 6},
    ],
)
def test_damaged_entries_are_refused(tmp_path: Path, entry: Any) -> None:
    path = write(tmp_path / "weights", {"x": entry})
    with pytest.raises(CheckpointError, match="is no safetensors file: its header has"):
        stored_tensors(path, header_of(path))


@pytest.mark.parametrize("header", [[], "x", 3])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, header: Any) -> None:
    path = write(tmp_path / "weights", header)
    with pytest.raises(CheckpointError, match="is no safetensors file: its header has"):
        stored_tensors(path, header_of(path))


def test_a_header_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    header = b"\xff" + b"x" * 10_000
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="its header has UnicodeDecodeError") as raised:
        stored_tensors(path, header_of(path))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("offsets", [[0, 28], [-4, 20], [24, 0]])
def test_tensors_outside_their_file_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    path = write(tmp_path / "weights", {"x": {**GOOD, "data_offsets": offsets}})
    with pytest.raises(CheckpointError, match="is no safetensors file: x has bytes"):
        stored_tensors(path, header_of(path))


def test_a_size_that_contradicts_the_shape_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "weights", {"x": {**GOOD, "shape": [2, 2]}})
    with pytest.raises(CheckpointError, match=r"x is F32 \[2, 2\], but has 24 bytes"):
        stored_tensors(path, header_of(path))
