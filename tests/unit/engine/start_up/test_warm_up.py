import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_driver import hash_block
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import Engine, EngineConfig, KvCache, LoadedModel, load_model
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.sampling import sampler
from pagoda_engine.start_up import scratch_engine
from pagoda_engine.start_up.warm_up import SAMPLINGS, prompt_lengths, warm_engine, warm_kernels
from pagoda_kernels import SamplingRows, sample_tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    return load_model(folder, EngineConfig(dtype="float32"))


def warmed(model: LoadedModel, **limits: int) -> tuple[Engine, list[bytes]]:
    evicted: list[bytes] = []
    config = EngineConfig(**{"num_blocks": 8, "max_model_len": 128, **limits})
    warm_kernels(model, config)
    engine = Engine(
        model,
        config,
        hash_block=hash_block,
        on_evict=lambda block_hash, _: evicted.append(block_hash),
    )
    warm_engine(engine)
    return engine, evicted


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"block_size": 1},
        {"block_size": 256, "num_blocks": 1},
        {"max_num_seqs": 1, "max_num_waiting": 1},
        {"max_num_batched_tokens": 1},
        {"max_model_len": 3},
        {"max_model_len": 4},
        {"num_blocks": 1},
    ],
)
def test_nothing_is_left_behind_whatever_the_limits(
    model: LoadedModel, limits: dict[str, int]
) -> None:
    engine, evicted = warmed(model, **limits)

    assert engine.num_free_blocks == engine.config.num_blocks
    assert not engine.has_work()
    assert evicted == []
    assert engine.step().stored == ()
    engine.check_invariants()


def test_its_blocks_are_for_what_it_runs_however_many_sequences_the_engine_may(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    nums_of_blocks: list[int] = []

    class Recorded(scratch_engine.OneLayerCache):
        def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
            nums_of_blocks.append(num_blocks)
            super().__init__(layout, num_blocks, device)

    monkeypatch.setattr(scratch_engine, "OneLayerCache", Recorded)
    warm_kernels(model, EngineConfig(max_num_seqs=4096, block_size=256, max_model_len=64))

    (num_blocks,) = nums_of_blocks
    assert num_blocks < 3 * 2 * len(SAMPLINGS)


def test_blocks_keep_their_bytes(model: LoadedModel) -> None:
    # Too short for the engine's own sequence, which would write to a block.
    config = EngineConfig(block_size=128, max_model_len=3, num_blocks=4, num_layer_groups=2)
    engine = Engine(model, config, hash_block=hash_block)
    engine.kv_cache.tensor.copy_(torch.rand(engine.kv_cache.tensor.shape))
    before = engine.kv_cache.tensor.clone()
    warm_engine(engine)

    assert torch.equal(engine.kv_cache.tensor, before)


def test_blocks_are_copied_in_every_way_and_every_part(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[tuple[str, int | None]] = set()

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(KvCache, name)
        signature = inspect.signature(method)

        def record(*args: Any, **kwargs: Any) -> Any:
            layers = signature.bind(*args, **kwargs).arguments.get("layers")
            taken.add((name, None if layers is None else len(layers)))
            return method(*args, **kwargs)

        return record

    ways = ("read_blocks_with_digest", "write_blocks", "copy_blocks", "digest_blocks")
    for name in ways:
        monkeypatch.setattr(KvCache, name, recorded(name))
    config = EngineConfig(max_model_len=128, num_blocks=4, num_layer_groups=2)
    engine = Engine(model, config, hash_block=hash_block)
    warm_engine(engine)

    assert engine.kv_cache.num_layers == 3
    assert taken == set(itertools.product(ways, (None, 1, 2)))


def test_logits_are_sampled_in_each_dtype_that_they_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel is compiled for each. Rows that nothing changes have the model's own, and what is
    truncated by a kernel of its own is float32 for the one that draws."""
    model = load_model(make_tiny_checkpoint(tmp_path), EngineConfig(dtype="bfloat16"))
    seen = set[tuple[torch.dtype, bool]]()

    def record(logits: torch.Tensor, rows: SamplingRows) -> Any:
        seen.add((logits.dtype, rows.truncates_more))
        return sample_tokens(logits, rows)

    monkeypatch.setattr(sampler, "sample_tokens", record)
    warm_kernels(model, EngineConfig(num_blocks=8, max_model_len=64))
    assert seen >= {(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, True)}


def test_every_way_of_choosing_a_token_is_among_the_samplings() -> None:
    assert any(s.temperature == 0 for s in SAMPLINGS)
    assert any(s.temperature and s.top_k and s.top_p < 1 and s.min_p for s in SAMPLINGS)
    assert any(s.repetition_penalty != 1 and s.presence_penalty for s in SAMPLINGS)
    assert any(s.top_n_sigma and s.typical_p < 1 and s.xtc_probability == 1 for s in SAMPLINGS)
    assert any(s.dry_multiplier and s.lz_penalty for s in SAMPLINGS)
    assert any(s.logit_bias for s in SAMPLINGS)
    assert any(s.min_tokens and s.stop_token_ids for s in SAMPLINGS)
    assert any(s.num_logprobs is not None for s in SAMPLINGS)


def test_prompt_lengths_are_one_powers_of_two_and_odd_numbers() -> None:
    assert list(prompt_lengths(20)) == [1, 2, 4, 7, 8, 13, 16]
    assert list(prompt_lengths(1)) == [1]
    assert list(prompt_lengths(0)) == []
    assert {n % 16 == 0 for n in prompt_lengths(100) if n > 16} == {True, False}
