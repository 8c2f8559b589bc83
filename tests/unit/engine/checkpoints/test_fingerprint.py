from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import CheckpointError
from pagoda_engine.checkpoints import fingerprint as module
from pagoda_engine.checkpoints.fingerprint import fingerprint


def of(folder: Path) -> bytes:
    return fingerprint(folder / "config.json", list(folder.glob("*.safetensors")))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_copies_have_the_same_fingerprint(tmp_path: Path) -> None:
    first = of(make_tiny_checkpoint(tmp_path / "a"))
    assert len(first) == 16
    assert of(make_tiny_checkpoint(tmp_path / "b")) == first


def test_configuration_counts(tmp_path: Path) -> None:
    first = of(make_tiny_checkpoint(tmp_path / "a"))
    assert of(make_tiny_checkpoint(tmp_path / "b", rope_theta=9999.0)) != first


def test_sharding_counts(tmp_path: Path) -> None:
    first = of(make_tiny_checkpoint(tmp_path / "a"))
    assert of(make_tiny_checkpoint(tmp_path / "b", num_shards=2)) != first


@pytest.mark.parametrize("position", [0.3, 0.7, 0.999])
def test_every_byte_of_a_small_model_counts(tmp_path: Path, position: float) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    first = of(folder)
    path = folder / "model.safetensors"
    flip(path, int(position * path.stat().st_size))
    assert of(folder) != first


def test_start_of_every_tensor_of_a_large_model_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FULL_CONTENT_BYTES", 1000)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 16)
    folder = make_tiny_checkpoint(tmp_path)
    path = folder / "model.safetensors"
    tensors = {f"t{i}": torch.full((1000,), float(i)) for i in range(5)}
    save_file(tensors, path)
    first = of(folder)
    for i in range(5):
        save_file({**tensors, f"t{i}": torch.full((1000,), -1.0)}, path)
        assert of(folder) != first
    save_file(tensors, path)
    assert of(folder) == first


def test_large_models_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL_CONTENT_BYTES", 1000)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 16)
    folder = make_tiny_checkpoint(tmp_path)
    path = folder / "model.safetensors"
    save_file({"t": torch.zeros(100_000)}, path)
    first = of(folder)
    flip(path, path.stat().st_size - 1)
    assert of(folder) == first


@pytest.mark.parametrize("data", [b"", b"\x10\0\0\0\0\0\0\0{}", b"\xff" * 20])
def test_other_formats_are_refused(tmp_path: Path, data: bytes) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        of(folder)
