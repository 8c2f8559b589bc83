"""A tied embedding is held once where the output projection is packed."""

from pathlib import Path

import pytest
import torch
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, load_model
from pagoda_engine.models.embeddings.embedding import Embedding
from pagoda_kernels.native.packed_linear import PackedLinear, can_pack

needs_packing = pytest.mark.skipif(
    not can_pack(torch.zeros(2, 2)), reason="no native library on this machine"
)


def embedding_of(folder: Path, **config: str) -> Embedding:
    model = load_model(folder, EngineConfig(max_model_len=64, **config))
    return model.decoder._embedding


@needs_packing
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_tied_is_held_once(tmp_path: Path, dtype: str) -> None:
    folder = make_tiny_checkpoint(tmp_path / "qwen", "qwen2", tie_word_embeddings=True)
    embedding = embedding_of(folder, dtype=dtype)
    assert isinstance(embedding.weight, PackedLinear)
    ids = torch.tensor([5, 0, 63, 64, 5])
    rows = embedding(ids)
    assert rows.dtype is embedding.dtype
    assert torch.equal(rows[0], rows[4])
    assert rows.std(dim=1).min() > 0


@needs_packing
def test_codes_are_not_looked_up(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "qwen", "qwen2", tie_word_embeddings=True)
    embedding = embedding_of(folder, dtype="bfloat16", quantization="int8")
    assert isinstance(embedding.weight, torch.Tensor)


def test_what_is_not_tied_is_a_table(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "llama", "llama", tie_word_embeddings=False)
    embedding = embedding_of(folder, dtype="float32")
    assert isinstance(embedding.weight, torch.Tensor)
    assert torch.equal(embedding(torch.tensor([3])), embedding.weight[3:4])
