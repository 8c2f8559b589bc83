from pathlib import Path

import pytest
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda.decode.config import DecodeSettings
from pagoda.engine import InvalidConfigError
from pagoda.runtime.block_hash import hash_block
from pagoda.worker.load_engine import LoadedEngine, load_engine, share_left


def load(folder: Path, evicted: list[bytes], **settings: object) -> LoadedEngine:
    return load_engine(
        folder,
        DecodeSettings.model_validate({"num_blocks": 8, "device": "cpu", **settings}),
        model_name="tiny",
        dtype="float32",
        hash_block=hash_block,
        on_evict=lambda block_hash, _: evicted.append(block_hash),
    )


def test_warm_up_leaves_nothing_behind(tmp_path: Path) -> None:
    evicted: list[bytes] = []
    loaded = load(make_tiny_checkpoint(tmp_path), evicted)

    assert loaded.engine.num_free_blocks == 8
    assert not loaded.engine.has_work()
    assert evicted == []
    assert loaded.engine.step().stored == ()


def test_warm_up_is_left_out_where_it_would_fill_a_block(tmp_path: Path) -> None:
    loaded = load(make_tiny_checkpoint(tmp_path), [], block_size=1)

    assert loaded.engine.num_free_blocks == 8


def test_card_says_what_is_served(tmp_path: Path) -> None:
    card = load(make_tiny_checkpoint(tmp_path), []).card

    assert (card.name, card.block_size, card.max_model_len) == ("tiny", 16, 512)
    assert len(card.kv_identity) == 16


def test_a_pool_without_room_for_a_block_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="kv_cache_bytes"):
        load(make_tiny_checkpoint(tmp_path), [], num_blocks=0, kv_cache_bytes=100)


@pytest.mark.parametrize(
    ("free", "own", "expected"),
    [
        (80, 10, 30),  # alone on the GPU: its half, less its own weights
        (30, 10, 30),  # a neighbour took 40: still its half
        (20, 10, 20),  # no more than there is
        (90, 60, 0),  # the weights alone are more than its share
    ],
)
def test_share_of_a_gpu_does_not_depend_on_neighbours(free: int, own: int, expected: int) -> None:
    assert share_left(free, total=80, own=own, utilization=0.5) == expected
