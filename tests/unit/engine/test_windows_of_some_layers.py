"""Engines of models of which some layers have windows: what they hold, and the same outputs."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine_driver import Collected, EngineDriver, hash_block
from support.family_checkpoints import make_family_checkpoint
from support.oracle import Oracle
from support.prompts_in_windows import prompt_of, prompts_that_share, run_together
from support.rerun_capture import RerunCapture
from support.seeds import seed_of_tests
from support.tiny_engine import greedy

from pagoda_engine import (
    BeamSearchParams,
    EngineConfig,
    InvalidSequenceError,
    KvSource,
    LoadedModel,
    SamplingParams,
    load_model,
)
from pagoda_engine.models import description

WINDOW, BLOCK_SIZE = 21, 4
CHUNK = 16
LOGPROBS = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, num_logprobs=2)
SEARCH = SamplingParams(
    max_tokens=60,
    temperature=0.0,
    num_logprobs=2,
    ignore_eos=True,
    beam_search=BeamSearchParams(4, 1.0, early_stopping="never"),
)
FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = {
    "gemma3": ("gemma3", [*[SLIDING] * 5, FULL]),
    "gemma4": ("gemma4", [*[SLIDING] * 7, FULL]),
    "gemma4 whose last layers have no KV": ("gemma4_small", [*[SLIDING, SLIDING, FULL] * 3]),
    "olmo3": ("olmo3", [*[SLIDING] * 3, FULL]),
    "cohere2": ("cohere2", [*[SLIDING] * 3, FULL]),
    "olmo3 with a group that is not full": ("olmo3", [SLIDING, FULL, SLIDING, FULL, SLIDING]),
}


@pytest.fixture(scope="module", params=[*LAYERS])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cohere 2 is computed by torch, the others by the C layers where there are any."""
    family, layers = LAYERS[request.param]
    return make_family_checkpoint(
        tmp_path_factory.mktemp("mixed"),
        family,
        num_hidden_layers=len(layers),
        layer_types=layers,
        sliding_window=WINDOW,
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(folder, EngineConfig(dtype="float32", max_model_len=512))


@pytest.fixture(scope="module")
def found_alone(model: LoadedModel) -> dict[tuple[int, ...], Collected]:
    """What prompts get alone: the same, wherever the KV of those beside others comes from."""
    return {}


@pytest.fixture
def rng() -> random.Random:
    return random.Random(seed_of_tests())


def make(
    model: LoadedModel, graph_capture: RerunCapture | None = None, **fields: object
) -> EngineDriver:
    values = {
        "block_size": BLOCK_SIZE,
        "num_blocks": 200,
        "max_model_len": 400,
        "max_num_batched_tokens": CHUNK,
        "max_num_seqs": 8,
    }
    config = EngineConfig(**{**values, **fields})
    return EngineDriver(model, config, graph_capture=graph_capture)


@pytest.fixture
def make_whole(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EngineDriver]:
    """Make engines whose blocks have all layers in one part."""

    def make_one(model: LoadedModel, **fields: object) -> EngineDriver:
        with monkeypatch.context() as patch:
            patch.setattr(description, "layer_groups", lambda *_: None)
            driver = make(model, **fields)
        assert driver.engine.kv_cache.layout.groups is None
        return driver

    return make_one


def alone(
    driver: EngineDriver, prompt: list[int], sampling: SamplingParams = LOGPROBS
) -> Collected:
    name = f"alone {len(driver.sequences)}"
    driver.add(name, prompt, sampling=sampling)
    return driver.run()[name]


def assert_alike(model: LoadedModel, found: Collected, expected: Collected) -> None:
    """To the bit, where what is computed beside a token makes no difference."""
    assert found.token_ids == expected.token_ids
    if model.decoder.is_batch_invariant:
        assert found.logprobs == expected.logprobs


def num_parts(model: LoadedModel) -> int:
    return model.kv_layout(BLOCK_SIZE).num_parts


def test_a_pool_holds_longer_sequences(
    model: LoadedModel, rng: random.Random, make_whole: Callable[..., EngineDriver]
) -> None:
    """Of the parts that layers with windows read it holds those of a window and a chunk."""
    prompt = prompt_of(rng, 300)
    driver = make(model, num_blocks=60)
    pool = driver.engine._pool
    driver.add("a", prompt, sampling=LOGPROBS)
    held = []
    while driver.engine.has_work():
        driver.step()
        held.append(pool.num_places - pool.num_free_places)
    each = num_parts(model) - 1
    most = 1 + -(-(WINDOW + 2 * CHUNK) // BLOCK_SIZE)
    assert max(held) <= 85 + each * most < 85 * (1 + each)
    assert held[-2] <= 85 + each * (2 + -(-WINDOW // BLOCK_SIZE))
    assert_alike(model, driver.sequences["a"], alone(make_whole(model), prompt))


@pytest.mark.parametrize("kv_source", [KvSource.COMPUTE, KvSource.HANDOVER, KvSource.IMPORT])
def test_many_prompts_in_a_small_pool_get_what_they_get_alone(
    model: LoadedModel,
    rng: random.Random,
    make_whole: Callable[..., EngineDriver],
    found_alone: dict[tuple[int, ...], Collected],
    kv_source: KvSource,
) -> None:
    driver, prompts = make(model, num_blocks=45), prompts_that_share(rng)
    run_together(driver, prompts, LOGPROBS, kv_source)
    assert driver.engine.num_free_blocks == 45
    whole = make_whole(model)
    for i, prompt in enumerate(prompts):
        if tuple(prompt) not in found_alone:
            found_alone[tuple(prompt)] = alone(whole, prompt)
        assert_alike(model, driver.sequences[str(i)], found_alone[tuple(prompt)])


def hashes_of(prompt: list[int]) -> list[bytes]:
    hashes, parent = [], bytes(16)
    for start in range(0, len(prompt) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = hash_block(parent, prompt[start : start + BLOCK_SIZE])
        hashes.append(parent)
    return hashes


def test_a_prefix_is_found_while_the_parts_of_its_end_are_here(
    model: LoadedModel, rng: random.Random
) -> None:
    prompt = prompt_of(rng, 121)
    driver = make(model, num_blocks=60)
    cold = alone(driver, prompt)
    pool, hashes = driver.engine._pool, hashes_of(prompt)
    # Enough that places are needed: parts behind windows go first, the blocks stay.
    driver.add("other", prompt_of(rng, 100), sampling=greedy(1))
    driver.run()
    assert driver.engine.match_prefix(hashes) == len(hashes)
    assert not pool.is_whole_here(hashes[0])
    driver.add("warm", prompt, sampling=LOGPROBS)
    reservation = driver.step().reserved[0]
    assert reservation.num_cached_tokens == 120
    assert_alike(model, driver.run()["warm"], cold)

    # A shorter prefix ends where the parts are gone: it is computed, and then found again.
    short = [*prompt[:60], *prompt_of(rng, 3)]
    for name, num_cached in (("short", 0), ("again", 60)):
        driver.add(name, short, sampling=greedy(1))
        assert driver.step().reserved[0].num_cached_tokens == num_cached
        driver.run()


@pytest.mark.parametrize("num_missing", [0, 1, 30])
def test_a_handover_is_of_what_the_next_token_sees(
    model: LoadedModel, rng: random.Random, num_missing: int
) -> None:
    prompt = prompt_of(rng, 123)
    expected = alone(make(model), prompt, greedy(30)).token_ids
    target = make(model, num_blocks=40)
    target.add("a", prompt, sampling=greedy(30), kv_source=KvSource.HANDOVER)
    reservation = target.step().reserved[0]
    pool, each = target.engine._pool, num_parts(model) - 1
    held = pool.num_places - pool.num_free_places
    assert held == 31 + each * (31 - (120 + 1 - WINDOW) // BLOCK_SIZE)

    source = make(model, num_blocks=40)
    source.add("a", prompt, sampling=greedy(), prefill_only=True)
    blocks: dict[int, int] = {}
    while not source.sequences.get("a"):
        for computed in source.step().computed:
            blocks.update(enumerate(computed.block_ids, computed.first_block))
    indices = range(31 - num_missing)
    rows = source.engine.kv_cache.read_blocks([blocks[i] for i in indices])
    target.engine.kv_cache.write_blocks([reservation.block_ids[i] for i in indices], rows)
    source.engine.release("a")
    assert source.engine.num_free_blocks == 40

    token_id = source.sequences["a"].token_ids[0]
    if num_missing:
        num_valid = (31 - num_missing) * BLOCK_SIZE
        target.engine.import_finished("a", num_computed_tokens=num_valid)
    else:
        target.engine.import_finished("a", num_computed_tokens=123, first_token_id=token_id)
    found = target.run()["a"].token_ids
    partial = set().union(*(result.partial for result in target.results))
    # Where next to nothing came, it was computed, and what lacked parts gave way to that.
    num_partial = 0 if num_missing == 30 else (120 + 1 - WINDOW) // BLOCK_SIZE
    assert partial == set(reservation.block_ids[:num_partial])
    assert found == (expected if num_missing else expected[1:])
    assert expected[0] == token_id
    assert target.engine.num_free_blocks == 40


def test_prompts_for_other_workers_share_a_small_pool(
    model: LoadedModel, rng: random.Random, make_whole: Callable[..., EngineDriver]
) -> None:
    """Nobody can preempt them, and none of them waits for ever."""
    prefix = prompt_of(rng, 90)
    prompts = {
        str(i): prefix[: rng.choice([0, 50, 90])] + prompt_of(rng, rng.randint(60, 120))
        for i in range(10)
    }
    driver, whole = make(model, num_blocks=48), make_whole(model)
    for name, prompt in prompts.items():
        driver.add(name, prompt, sampling=greedy(1), prefill_only=True)
    released: set[str] = set()
    for _ in range(2000):
        result = driver.step()
        for output in result.outputs:
            driver.engine.release(output.sequence_id)
            released.add(output.sequence_id)
        if len(released) == len(prompts):
            break
    assert released == set(prompts)
    for name, prompt in prompts.items():
        assert [driver.sequences[name].token_ids] == whole.generate([prompt], sampling=greedy(1))
        whole.sequences.clear()


def assert_same_search(model: LoadedModel, found: Collected, expected: Collected) -> None:
    """To the bit, as `assert_alike`."""
    assert found.hypotheses
    for ours, theirs in zip(found.hypotheses, expected.hypotheses, strict=True):
        assert ours.token_ids == theirs.token_ids
        if model.decoder.is_batch_invariant:
            assert ours == theirs


def test_a_search_fits_where_whole_blocks_would_not(
    model: LoadedModel, rng: random.Random, make_whole: Callable[..., EngineDriver]
) -> None:
    prompt, num_blocks = prompt_of(rng, 161), 85
    whole = make_whole(model, num_blocks=num_blocks)
    with pytest.raises(InvalidSequenceError, match="KV blocks that 4 beams"):
        whole.add("a", prompt, sampling=SEARCH)
    driver = make(model, num_blocks=num_blocks)
    assert_same_search(
        model, alone(driver, prompt, SEARCH), alone(make_whole(model), prompt, SEARCH)
    )
    assert driver.num_preempted == 0
    assert driver.engine.num_free_blocks == num_blocks


def test_searches_in_a_small_pool_find_what_they_find_alone(
    model: LoadedModel, rng: random.Random, make_whole: Callable[..., EngineDriver]
) -> None:
    """Beside prompts that are no searches, and preempted."""
    driver = make(model, num_blocks=58, max_num_seqs=40, max_num_batched_tokens=40)
    whole = make_whole(model)
    prompts = [prompt[-24 if i % 3 else 0 :] for i, prompt in enumerate(prompts_that_share(rng))]
    samplings = [SEARCH if i % 3 else LOGPROBS for i in range(len(prompts))]
    for i, prompt in enumerate(prompts):
        driver.add(str(i), prompt, sampling=samplings[i])
    driver.run()
    assert driver.num_preempted > 0
    assert driver.engine.num_free_blocks == 58
    for i, prompt in enumerate(prompts):
        expected = alone(whole, prompt, samplings[i])
        if samplings[i] is SEARCH:
            assert_same_search(model, driver.sequences[str(i)], expected)
        else:
            assert_alike(model, driver.sequences[str(i)], expected)


def test_proposed_tokens_leave_no_trace(
    model: LoadedModel, rng: random.Random, make_whole: Callable[..., EngineDriver]
) -> None:
    prompt = prompt_of(rng, 20) * 5
    few = greedy(60, logit_bias=dict.fromkeys(range(30, 34), 40.0))  # so they repeat what has been
    expected = make_whole(model).generate([prompt, prompt[7:]], sampling=few)
    for capture in (None, RerunCapture()):
        config = {"num_blocks": 60, "speculation": "ngram", "num_speculative_tokens": 6}
        driver = make(model, graph_capture=capture, **config)
        driver.engine.capture()
        assert driver.generate([prompt, prompt[7:]], sampling=few) == expected
        verifying = [r.stats for r in driver.results if r.stats.num_proposed_tokens]
        assert verifying
        assert any(stats.is_graph for stats in verifying) == (capture is not None)


def test_windows_that_no_sequence_outgrows_leave_blocks_whole(folder: Path) -> None:
    short = load_model(folder, EngineConfig(dtype="float32", max_model_len=WINDOW))
    assert short.kv_layout(BLOCK_SIZE).groups is None
    long = load_model(folder, EngineConfig(dtype="float32", max_model_len=WINDOW + 1))
    assert long.kv_layout(BLOCK_SIZE).groups is not None
    assert long.kv_layout(BLOCK_SIZE).name != short.kv_layout(BLOCK_SIZE).name


def test_replays_of_graphs_read_the_parts_that_eager_steps_read(
    model: LoadedModel, rng: random.Random
) -> None:
    prompts = [prompt_of(rng, rng.randint(1, 90)) for _ in range(6)]
    capture = RerunCapture()
    config = {"num_blocks": 60, "graph_batch_sizes": (2, 8)}
    graphs = make(model, graph_capture=capture, **config)
    graphs.engine.capture()
    assert not graphs.engine.kv_cache.tensor.any(), "a capture changes no KV"
    found = graphs.generate(prompts, sampling=greedy(50))
    assert capture.num_replays > 30
    assert found == make(model, **config).generate(prompts, sampling=greedy(50))


def test_tokens_are_those_of_transformers(folder: Path, rng: random.Random) -> None:
    """In chunks, found again, beside others that take its blocks away."""
    oracle = Oracle(folder)
    shared = prompt_of(rng, 70)
    prompts = [[*shared, *prompt_of(rng, 20)], [*shared, *prompt_of(rng, 9)], prompt_of(rng, 50)]
    driver = make(oracle.model, num_blocks=30, block_size=8)
    assert driver.engine.kv_cache.layout.groups is not None
    for _ in range(2):
        outputs = driver.generate(prompts, sampling=greedy(30))
        assert outputs == oracle.all_greedy(prompts, 30, outputs)
        driver.sequences.clear()
    cached = [r.num_cached_tokens for result in driver.results for r in result.reserved]
    assert max(cached) >= 64
    prompts = [prompt[-20:] for prompt in prompts]
    small = make(oracle.model, num_blocks=11, block_size=8)
    outputs = small.generate(prompts, sampling=greedy(60))
    assert outputs == oracle.all_greedy(prompts, 60, outputs)
    assert small.num_preempted > 0
