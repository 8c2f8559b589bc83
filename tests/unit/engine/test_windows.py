"""Engines of a model whose every layer has a window: what they hold, and the same outputs."""

import random
from pathlib import Path

import pytest
from support.engine_driver import EngineDriver, hash_block
from support.prompts_in_windows import prompt_of, prompts_that_share, run_together
from support.seeds import seed_of_tests
from support.tiny_checkpoints import make_tiny_checkpoint
from support.tiny_engine import greedy

from pagoda_engine import (
    BeamSearchParams,
    EngineConfig,
    KvSource,
    LoadedModel,
    SamplingParams,
    load_model,
)
from pagoda_engine.models.description import DecoderDescription

WINDOW, BLOCK_SIZE = 27, 4
WINDOW_BLOCKS = -(-WINDOW // BLOCK_SIZE)
CHUNK = 16
LOGPROBS = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, num_logprobs=2)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = make_tiny_checkpoint(tmp_path_factory.mktemp("windows"), "mistral")
    return load_model(folder, EngineConfig(dtype=request.param, max_model_len=512))


@pytest.fixture
def rng() -> random.Random:
    return random.Random(seed_of_tests())


def make(model: LoadedModel, **fields: object) -> EngineDriver:
    values = {
        "block_size": BLOCK_SIZE,
        "num_blocks": 200,
        "max_model_len": 400,
        "max_num_batched_tokens": CHUNK,
        "max_num_seqs": 8,
    }
    return EngineDriver(model, EngineConfig(**{**values, **fields}))


def outputs(driver: EngineDriver, prompts: list[list[int]], sampling: SamplingParams) -> list:
    for i, prompt in enumerate(prompts):
        driver.add(str(i), prompt, sampling=sampling)
    collected = driver.run()
    return [(collected[str(i)].token_ids, collected[str(i)].logprobs) for i in range(len(prompts))]


def test_what_a_sequence_holds_does_not_grow_with_it(
    model: LoadedModel, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.description.kv_window == WINDOW
    prompt = prompt_of(rng, 300)
    small = make(model, num_blocks=90)
    small.add("a", prompt, sampling=LOGPROBS)
    held = []
    while small.engine.has_work():
        small.step()
        held.append(90 - small.engine.num_free_blocks)
    most = 1 + -(-(WINDOW + 2 * CHUNK) // BLOCK_SIZE)
    assert max(held) <= most < len(prompt) // BLOCK_SIZE
    assert max(held[-30:-1]) <= WINDOW_BLOCKS + 1  # of its output
    found = small.sequences["a"]
    monkeypatch.setattr(DecoderDescription, "kv_window", None)
    assert outputs(make(model), [prompt], LOGPROBS) == [(found.token_ids, found.logprobs)]


@pytest.mark.parametrize("kv_source", [KvSource.COMPUTE, KvSource.HANDOVER])
def test_many_prompts_in_a_small_pool_get_what_they_get_alone(
    model: LoadedModel, rng: random.Random, monkeypatch: pytest.MonkeyPatch, kv_source: KvSource
) -> None:
    driver, prompts = make(model, num_blocks=50), prompts_that_share(rng)
    run_together(driver, prompts, LOGPROBS, kv_source)
    found = [
        (driver.sequences[str(i)].token_ids, driver.sequences[str(i)].logprobs)
        for i in range(len(prompts))
    ]
    monkeypatch.setattr(DecoderDescription, "kv_window", None)
    for prompt, each in zip(prompts, found, strict=True):
        assert outputs(make(model), [prompt], LOGPROBS) == [each]


def test_a_prefix_is_found_by_its_end(model: LoadedModel, rng: random.Random) -> None:
    """What lies behind the window may be evicted: it is the first to go."""
    prompt = prompt_of(rng, 121)
    driver = make(model, num_blocks=41)
    cold = outputs(driver, [prompt], LOGPROBS)
    driver.add("other", prompt_of(rng, 60), sampling=greedy(1))
    driver.run()
    hashes, parent = [], bytes(16)
    for start in range(0, 120, BLOCK_SIZE):
        parent = hash_block(parent, prompt[start : start + BLOCK_SIZE])
        hashes.append(parent)
    assert driver.engine.match_prefix(hashes) == 0, "its begin is evicted"
    driver.add("warm", prompt, sampling=LOGPROBS)
    reservation = driver.step().reserved[0]
    assert reservation.num_cached_tokens == 120
    assert reservation.num_null_blocks == (121 - WINDOW) // BLOCK_SIZE
    warm = driver.run()["warm"]
    assert [(warm.token_ids, warm.logprobs)] == cold


@pytest.mark.parametrize("num_missing", [0, 1, 30])
def test_a_handover_is_of_what_the_next_token_sees(
    model: LoadedModel, rng: random.Random, num_missing: int
) -> None:
    prompt = prompt_of(rng, 123)
    expected = outputs(make(model), [prompt], greedy(30))[0][0]
    target = make(model, num_blocks=40)
    target.add("a", prompt, sampling=greedy(30), kv_source=KvSource.HANDOVER)
    reservation = target.step().reserved[0]
    first = reservation.num_null_blocks
    assert first == (123 - WINDOW) // BLOCK_SIZE
    assert target.engine.num_free_blocks == 40 - (31 - first)

    source = make(model, num_blocks=50)
    source.add("a", prompt, sampling=greedy(), prefill_only=True, first_export_block=first)
    blocks: dict[int, int] = {}
    while not source.sequences.get("a"):
        for computed in source.step().computed:
            blocks.update(enumerate(computed.block_ids, computed.first_block))
    held = 50 - source.engine.num_free_blocks
    assert held == 31 - first
    indices = range(first, 31 - num_missing) if num_missing < 30 else ()
    rows = source.engine.kv_cache.read_blocks([blocks[i] for i in indices])
    target.engine.kv_cache.write_blocks([reservation.block_ids[i] for i in indices], rows)
    source.engine.release("a")
    assert source.engine.num_free_blocks == 50

    token_id = source.sequences["a"].token_ids[0]
    if num_missing:
        num_valid = (31 - num_missing) if num_missing < 30 else first
        target.engine.import_finished("a", num_computed_tokens=num_valid * BLOCK_SIZE)
    else:
        target.engine.import_finished("a", num_computed_tokens=123, first_token_id=token_id)
    found = target.run()["a"].token_ids
    assert found == (expected if num_missing else expected[1:])
    assert expected[0] == token_id
    assert target.engine.num_free_blocks == 40


def test_beams_share_windows(
    model: LoadedModel, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(
        max_tokens=50, temperature=0.0, beam_search=BeamSearchParams(3, 1.0, early_stopping="never")
    )
    prompt = prompt_of(rng, 61)

    def hypotheses() -> list[tuple[int, ...]]:
        driver = make(model, num_blocks=60)
        driver.add("a", prompt, sampling=params)
        found = driver.run()["a"].hypotheses
        assert driver.engine.num_free_blocks == 60
        return [hypothesis.token_ids for hypothesis in found]

    found = hypotheses()
    monkeypatch.setattr(DecoderDescription, "kv_window", None)
    assert found == hypotheses()


def test_a_layer_that_sees_everything_keeps_everything(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen2", use_sliding_window=True, sliding_window=9)
    description = load_model(folder, EngineConfig(dtype="float32")).description
    assert {None, 9} == set(description.sliding_windows)
    assert description.kv_window is None
