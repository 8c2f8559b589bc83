import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pagoda_engine import CheckpointError
from pagoda_engine.checkpoints import weight_reader as module
from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS
from pagoda_engine.checkpoints.weight_reader import Piece, WeightReader

CPU = torch.device("cpu")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


@pytest.fixture
def reader() -> Iterator[WeightReader]:
    with WeightReader(CPU) as reader:
        yield reader


def write(path: Path, values: torch.Tensor, num_bytes_before: int = 0) -> Path:
    path.write_bytes(bytes(num_bytes_before) + values.view(torch.uint8).numpy().tobytes())
    return path


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("num_elements", [0, 1, 31, 32, 33, 1000])
def test_every_element_arrives_in_the_wanted_dtype(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    wanted: torch.dtype,
    num_elements: int,
    device: str,
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 128)
    values = torch.arange(-7, num_elements - 7).to(stored)
    path = write(tmp_path / "weights", values, num_bytes_before=13)
    destination = torch.full((num_elements,), float("nan"), dtype=wanted, device=device)
    with WeightReader(torch.device(device)) as reader:
        arrived = list(reader.read([Piece(path, 13, stored, destination)]))
    assert torch.equal(destination.cpu(), values.to(wanted))
    assert sum(arrived) == values.nbytes
    assert max(arrived, default=0) <= 128


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Q8_0", "Q6_K"])
def test_blocks_become_weights_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wanted: torch.dtype, device: str
) -> None:
    stored = BLOCK_FORMATS[name]
    monkeypatch.setattr(module, "BLOCK_CHUNK_ELEMENTS", 512)
    generator = torch.Generator().manual_seed(1)
    # No scale has all bits of its exponent set, so that every weight is finite.
    blocks = torch.randint(0, 120, (37, stored.num_bytes), dtype=torch.uint8, generator=generator)
    path = write(tmp_path / "weights", blocks, num_bytes_before=13)
    destination = torch.empty(37 * stored.num_elements, dtype=wanted, device=device)
    with WeightReader(torch.device(device)) as reader:
        arrived = list(reader.read([Piece(path, 13, stored, destination)]))
    assert torch.equal(destination.cpu(), stored.decode(blocks).flatten().to(wanted))
    assert destination.isfinite().all()
    assert sum(arrived) == blocks.nbytes
    assert len(arrived) == -(-37 * stored.num_elements // 512)


@pytest.mark.parametrize("device", DEVICES)
def test_a_shift_is_added_before_rounding(tmp_path: Path, device: str) -> None:
    values = torch.tensor([1.001, 0.5, 33.0])
    path = write(tmp_path / "weights", values)
    destination = torch.empty(3, dtype=torch.bfloat16, device=device)
    with WeightReader(torch.device(device)) as reader:
        list(reader.read([Piece(path, 0, torch.float32, destination, shift=-1.0)]))
    assert torch.equal(destination.cpu(), (values - 1).bfloat16())
    assert destination[0].item() == pytest.approx(0.001, rel=2**-8)


def test_pieces_of_many_files_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: WeightReader, seed: int
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    rng = random.Random(seed)
    joined = torch.full((3000,), float("nan"), dtype=torch.float32)
    pieces, want, first = [], [], 0
    for i in range(10):
        # Every other piece is converted and so passes through the memory that threads reuse.
        values = torch.rand(300).to(rng.choice([torch.float32, torch.bfloat16]))
        path = write(tmp_path / str(i), values, num_bytes_before=i)
        pieces.append(Piece(path, i, values.dtype, joined[first : first + 300]))
        want.append(values.float())
        first += 300
    list(reader.read(pieces))
    assert torch.equal(joined, torch.cat(want))


def test_file_that_ends_early_is_named(tmp_path: Path, reader: WeightReader) -> None:
    path = write(tmp_path / "short", torch.zeros(10))
    with pytest.raises(CheckpointError, match="short: ends at byte 40, within a tensor"):
        list(reader.read([Piece(path, 4, torch.float32, torch.empty(10))]))


def test_file_that_cannot_be_opened_is_named(tmp_path: Path, reader: WeightReader) -> None:
    with pytest.raises(CheckpointError, match="missing: cannot be opened: No such file"):
        list(reader.read([Piece(tmp_path / "missing", 0, torch.float32, torch.empty(1))]))


def test_file_that_cannot_be_read_is_named(tmp_path: Path, reader: WeightReader) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        list(reader.read([Piece(tmp_path, 0, torch.float32, torch.empty(1))]))


def test_closing_gives_back_files_and_threads(tmp_path: Path) -> None:
    path = write(tmp_path / "weights", torch.zeros(10))
    reader = WeightReader(CPU)
    list(reader.read([Piece(path, 0, torch.float32, torch.empty(10))]))
    descriptors = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    assert path in descriptors
    reader.close()
    descriptors = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    assert path not in descriptors
    with pytest.raises(RuntimeError, match="shutdown"):
        list(reader.read([Piece(path, 0, torch.float32, torch.empty(10))]))
