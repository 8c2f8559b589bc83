from pathlib import Path
from typing import Any

import pytest
from support.engine_driver import hash_block
from support.quantised_checkpoints import awq, quantised_pair
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda.rpc.v1.status_pb2 import ModelCard
from pagoda_engine import Engine, EngineConfig, load_model
from pagoda_worker.served_model import ServedModel


def card_of(folder: Path, **options: Any) -> ModelCard:
    config = EngineConfig(**{"dtype": "float32", "max_model_len": 512, **options})
    engine = Engine(load_model(folder, config), config, hash_block=hash_block)
    return ServedModel.of(engine, "tiny", ["small"]).card()


def test_card_says_what_the_checkpoint_is(tmp_path: Path) -> None:
    coded, dense = quantised_pair(make_tiny_checkpoint(tmp_path / "model"), awq())
    assert card_of(coded).quantization == "awq-int4"
    assert card_of(dense).quantization == "none"


def test_card_says_what_is_served(tmp_path: Path) -> None:
    config = EngineConfig(dtype="float32")
    engine = Engine(
        load_model(make_tiny_checkpoint(tmp_path), config), config, hash_block=hash_block
    )
    card = ServedModel.of(engine, "tiny", ["small"]).card()

    assert (card.name, card.block_size, card.max_model_len) == ("tiny", 16, 512)
    assert list(card.aliases) == ["small"]
    assert len(card.kv_identity) == 16
    assert (card.vocab_size, card.dtype) == (engine.model.vocab_size, "float32")
    assert card.quantization == "none"
    assert card.embedding_size == engine.model.description.hidden_size
    assert card.block_bytes * engine.kv_cache.num_blocks == engine.kv_cache.tensor.nbytes


@pytest.mark.parametrize(("kv_cache_dtype", "width"), [("auto", 4), ("int8", 1)])
def test_card_says_what_kv_takes(kv_cache_dtype: str, width: int, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, num_hidden_layers=3, num_key_value_heads=2, head_dim=16)
    card = card_of(folder, kv_cache_dtype=kv_cache_dtype, block_size=8)
    assert card.block_bytes == 2 * 3 * 8 * 2 * 16 * width
    assert (card.kv_window, card.block_bytes_behind_window) == (0, 0)


def test_behind_windows_of_all_layers_nothing_is_held(tmp_path: Path) -> None:
    card = card_of(make_tiny_checkpoint(tmp_path, "mistral", sliding_window=24))
    assert (card.kv_window, card.block_bytes_behind_window) == (24, 0)


def test_behind_windows_of_some_layers_the_others_parts_are_held(tmp_path: Path) -> None:
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    fields = {"num_hidden_layers": 3, "use_sliding_window": True, "layer_types": types}
    card = card_of(make_tiny_checkpoint(tmp_path, "qwen2", sliding_window=24, **fields))
    assert (card.kv_window, card.block_bytes_behind_window) == (24, card.block_bytes // 3)
