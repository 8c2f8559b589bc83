from pathlib import Path

from support.engine_driver import hash_block
from support.quantised_checkpoints import awq, quantised_pair
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda.rpc.v1.status_pb2 import ModelCard
from pagoda_engine import Engine, EngineConfig, load_model
from pagoda_worker.served_model import ServedModel


def card_of(folder: Path) -> ModelCard:
    config = EngineConfig(dtype="float32")
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
    assert card.block_bytes == engine.kv_cache.block_bytes
