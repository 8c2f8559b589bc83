"""Speculation changes how many steps an output takes, and nothing else of it."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.automaton_mask import AutomatonMask, random_edges
from support.engine_driver import Collected, EngineDriver
from support.rerun_capture import RerunCapture
from support.seeds import runs
from support.thread_queue import ThreadQueue
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import (
    EngineConfig,
    FinishReason,
    InvalidConfigError,
    KvSource,
    LoadedModel,
    SamplingParams,
    StepCost,
    load_model,
)
from pagoda_engine.sampling.sampler import INVALID, SampledToken
from pagoda_engine.step.launched import verified

REFRAIN = [219] * 15
"""What the tiny model has an answer to that repeats itself, in both dtypes."""
FEW = dict.fromkeys(range(30, 34), 40.0)
"""Bias to so few tokens that even drawn ones repeat what has been."""
LONG = greedy(60)
BIASED = greedy(60, logit_bias=FEW)
DRAFTED_COSTS = [
    StepCost(8.0, 1.0, 0.35, 0.05, is_seconds=True),
    StepCost(2e-3, 1e-4, 3e-5, 3e-5, is_seconds=True),
]
"""Where all that is drafted pays, and about as it is on a CPU."""
DRAWN = SamplingParams(max_tokens=60, temperature=0.7, seed=5, logit_bias=FEW, ignore_eos=True)


def speculating(model: LoadedModel, **fields: object) -> EngineDriver:
    return make_driver(model, **{"speculation": "ngram", **fields})


def collected(driver: EngineDriver, prompt: list[int], **fields: object) -> Collected:
    driver.add("a", prompt, **fields)
    return driver.run()["a"]


def last_proposed(driver: EngineDriver, first: int) -> int:
    """Return what was proposed in the steps from `first` on."""
    return sum(result.stats.num_proposed_tokens for result in driver.results[first:])


def num_proposed(driver: EngineDriver) -> int:
    return sum(result.stats.num_proposed_tokens for result in driver.results)


def num_accepted(driver: EngineDriver) -> int:
    return sum(result.stats.num_accepted_tokens for result in driver.results)


def num_steps(driver: EngineDriver) -> int:
    return sum(result.stats.num_sequences > 0 for result in driver.results)


def assert_equal(found: Collected, expected: Collected) -> None:
    """Bit for bit."""
    for name in ("first_index", "token_ids", "logprobs", "finish_reason", "matched_stop_token_id"):
        assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "sampling",
    [
        LONG,
        greedy(60, num_logprobs=3),
        greedy(60, num_logprobs=1, logprob_token_ids=(3, 4)),
        DRAWN,
        replace(DRAWN, top_k=3, top_p=0.9, min_p=0.01),
        greedy(60, allowed_token_ids=(30, 31, 32)),
        BIASED,
    ],
    ids=["greedy", "logprobs", "asked logprobs", "drawn", "truncated", "allowed", "biased"],
)
def test_output_is_bitwise_the_same(
    tiny_folder: Path, dtype: str, sampling: SamplingParams
) -> None:
    model = load_model(tiny_folder, EngineConfig(dtype=dtype, max_model_len=100))
    expected = collected(make_driver(model), REFRAIN, sampling=sampling)
    driver = speculating(model)
    assert_equal(collected(driver, REFRAIN, sampling=sampling), expected)
    assert num_accepted(driver) > 5
    assert num_steps(driver) == 60 - num_accepted(driver)
    assert driver.engine.num_free_blocks == 32
    driver.check_compute_time()


def test_a_stop_token_in_the_middle_of_what_was_accepted_ends_the_output(
    tiny_model: LoadedModel,
) -> None:
    num_in_the_middle = 0
    for stop in FEW:
        for cut in range(0, 40, 3):
            fields = {"stop_token_ids": (stop,), "min_tokens": cut, "num_logprobs": 0}
            sampling = replace(DRAWN, **fields)
            expected = collected(make_driver(tiny_model), REFRAIN, sampling=sampling)
            driver = speculating(tiny_model)
            assert_equal(collected(driver, REFRAIN, sampling=sampling), expected)
            assert driver.engine.num_free_blocks == 32
            last = driver.results[-1].outputs[-1]
            is_stop = last.finish_reason is FinishReason.STOP
            num_in_the_middle += is_stop and len(last.token_ids) > 1
    assert num_in_the_middle > 5


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_no_token_too_many(tiny_model: LoadedModel, max_tokens: int) -> None:
    driver = speculating(tiny_model)
    found = collected(driver, REFRAIN, sampling=greedy(max_tokens))
    assert len(found.token_ids) == max_tokens
    assert found.finish_reason is FinishReason.LENGTH
    driver = speculating(tiny_model, max_model_len=len(REFRAIN) + max_tokens)
    assert len(collected(driver, REFRAIN, sampling=LONG).token_ids) == max_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": greedy(60, repetition_penalty=1.01, logit_bias=FEW)},
        {"sampling": greedy(60, bad_words=((3, 4),))},
        {"sampling": greedy(60, dry_multiplier=0.8, logit_bias=FEW)},
        {
            "sampling": greedy(60, allowed_token_ids=(30, 31)),
            "token_mask": AutomatonMask({0: dict.fromkeys(range(30, 40), 0)}),
        },
    ],
    ids=["penalties", "bad words", "DRY", "grammar and allowed tokens"],
)
def test_what_depends_on_the_tokens_before_is_taken_one_by_one(
    tiny_model: LoadedModel, fields: dict[str, object]
) -> None:
    expected = collected(make_driver(tiny_model), REFRAIN, **fields)
    driver = speculating(tiny_model)
    assert_equal(collected(driver, REFRAIN, **fields), expected)
    assert num_proposed(driver) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_logprobs", [None, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("number", runs(1))
def test_what_a_grammar_binds_is_bitwise_the_same(
    tiny_folder: Path,
    seed: int,
    number: int,
    temperature: float,
    num_logprobs: int | None,
    dtype: str,
) -> None:
    model = load_model(tiny_folder, EngineConfig(dtype=dtype, max_model_len=100))
    rng = random.Random(seed + number)
    mask = AutomatonMask(random_edges(rng, num_states=8))
    plain, driver = make_driver(model), speculating(model)
    for i in range(6):
        sampling = SamplingParams(
            max_tokens=60, temperature=temperature, seed=i, num_logprobs=num_logprobs, min_tokens=5
        )
        for each in (plain, driver):
            each.add(str(i), PROMPT[i % 2 :], sampling=sampling, token_mask=mask)
            each.run()
        assert_equal(driver.sequences[str(i)], plain.sequences[str(i)])
    assert driver.engine.num_free_blocks == 32


def test_what_a_grammar_binds_is_speculated_for(tiny_model: LoadedModel) -> None:
    """Four tokens of ten, then two that are forced, again and again."""
    edges = {i: dict.fromkeys(range(30, 40), i + 1) for i in range(4)}
    mask = AutomatonMask({**edges, 4: {50: 5}, 5: {51: 0}})
    sampling = greedy(60, logit_bias={30: 40.0, 31: 39.0})
    expected = collected(make_driver(tiny_model), REFRAIN, sampling=sampling, token_mask=mask)
    driver = speculating(tiny_model)
    assert_equal(collected(driver, REFRAIN, sampling=sampling, token_mask=mask), expected)
    assert num_accepted(driver) > 10
    assert num_steps(driver) < 30, "40 tokens were chosen, 20 forced"


def test_what_is_forced_and_needs_log_probabilities_is_proposed(tiny_model: LoadedModel) -> None:
    edges = {i: {20 + i: i + 1} for i in range(30)}
    mask = AutomatonMask({**edges, 30: dict.fromkeys(range(200, 210), 0)})
    fields = {"sampling": greedy(62, num_logprobs=1), "token_mask": mask}
    expected = collected(make_driver(tiny_model), PROMPT, **fields)
    driver = speculating(tiny_model, num_speculative_tokens=15)
    assert_equal(collected(driver, PROMPT, **fields), expected)
    assert len(expected.logprobs) == 62
    assert num_steps(driver) <= 8, "two of sixteen for each run of thirty"


def test_where_proposals_are_outside_the_grammar_the_output_is_inside(
    tiny_model: LoadedModel,
) -> None:
    """Its prompt says again and again what the grammar does not let it say."""
    edges = {0: dict.fromkeys(range(30, 40), 1), 1: dict.fromkeys(range(40, 50), 0)}
    mask, sampling = AutomatonMask(edges), greedy(60, num_logprobs=1)
    prompt = [i for i in range(30, 40) for _ in range(3)]
    expected = collected(make_driver(tiny_model), prompt, sampling=sampling, token_mask=mask)
    driver = speculating(tiny_model)
    assert_equal(collected(driver, prompt, sampling=sampling, token_mask=mask), expected)
    assert all(
        (30 if i % 2 == 0 else 40) <= t < (40 if i % 2 == 0 else 50)
        for i, t in enumerate(expected.token_ids)
    )


def test_what_was_accepted_is_said_of_each_sequence(tiny_model: LoadedModel) -> None:
    driver = speculating(tiny_model)
    driver.add("a", REFRAIN, sampling=LONG)
    driver.add("b", OTHER, sampling=greedy(1))
    outputs = []
    while driver.engine.has_work():
        outputs += driver.step().outputs
    last = {output.sequence_id: output for output in outputs}
    assert last["a"].num_proposed_tokens == num_proposed(driver)
    assert last["a"].num_accepted_tokens == num_accepted(driver)
    assert last["b"].num_proposed_tokens == 0
    assert sum(len(output.token_ids) for output in outputs) == 61


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampling", [LONG, DRAWN], ids=["greedy", "drawn"])
def test_what_a_tenant_had_before_is_proposed_and_changes_no_bit(
    tiny_folder: Path, dtype: str, sampling: SamplingParams
) -> None:
    model = load_model(tiny_folder, EngineConfig(dtype=dtype, max_model_len=100))
    sampling = replace(sampling, num_logprobs=1)
    plain, driver = make_driver(model), speculating(model)
    for name, prompt in (("a", PROMPT), ("b", OTHER), ("c", PROMPT)):
        for each in (plain, driver):
            each.add(name, prompt, sampling=sampling, tenant=b"me")
            each.run()
        assert_equal(driver.sequences[name], plain.sequences[name])
    first = len(driver.results)
    driver.add("d", PROMPT, sampling=sampling, tenant=b"me")
    assert_equal(driver.run()["d"], plain.sequences["a"])
    assert len(driver.results) - first < 30, "the same question has the same answer"


def test_no_tenant_is_proposed_what_another_one_had(tiny_model: LoadedModel) -> None:
    """Not by its outputs, not by its prompts, not where the cache root alone differs."""
    driver, alone = speculating(tiny_model), speculating(tiny_model)
    for name in "ab":
        driver.add(name, PROMPT, sampling=LONG, tenant=b"one")
        driver.run()
    assert last_proposed(driver, 0) > 0
    expected = collected(alone, PROMPT, sampling=LONG, tenant=b"two")
    for name, fields in {
        "tenant": {"tenant": b"two"},
        "nobody": {},
        "salt": {"tenant": b"one", "cache_root": b"s" * 16},
    }.items():
        first = len(driver.results)
        driver.add(name, PROMPT, sampling=LONG, **fields)
        assert driver.run()[name].token_ids == expected.token_ids
        assert last_proposed(driver, first) == num_proposed(alone)


def test_without_memory_a_sequence_proposes_from_itself_alone(tiny_model: LoadedModel) -> None:
    driver = speculating(tiny_model, speculation_output_bytes=0)
    alone = collected(driver, PROMPT, sampling=LONG)
    num_alone, first = num_proposed(driver), len(driver.results)
    driver.add("b", PROMPT, sampling=LONG)
    assert driver.run()["b"].token_ids == alone.token_ids
    assert last_proposed(driver, first) == num_alone


def test_only_what_was_accepted_is_reused(tiny_model: LoadedModel) -> None:
    plain, driver = make_driver(tiny_model), speculating(tiny_model)
    for each in (plain, driver):
        collected(each, REFRAIN, sampling=LONG)
    stored = [{h for r in each.results for h, _ in r.stored} for each in (plain, driver)]
    assert stored[0] == stored[1]
    again = [*REFRAIN, *driver.sequences["a"].token_ids[:50]]
    driver.add("b", again, sampling=greedy(5, num_logprobs=2))
    assert driver.step().reserved[0].num_cached_tokens == len(again) // 4 * 4
    expected = collected(make_driver(tiny_model), again, sampling=greedy(5, num_logprobs=2))
    assert_equal(driver.run()["b"], expected)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_an_output_cut_anywhere_goes_on_the_same(tiny_model: LoadedModel, cut: int) -> None:
    tokens = collected(make_driver(tiny_model), REFRAIN, sampling=DRAWN).token_ids
    driver = speculating(tiny_model)
    found = collected(driver, REFRAIN, sampling=DRAWN, output_token_ids=tuple(tokens[:cut]))
    assert found.token_ids == tokens[cut:]
    assert num_accepted(driver) > 5


def test_an_imported_prompt_is_speculated_for(tiny_model: LoadedModel) -> None:
    tokens = collected(make_driver(tiny_model), REFRAIN, sampling=LONG).token_ids
    producer, driver = speculating(tiny_model), speculating(tiny_model)
    producer.add("a", REFRAIN, sampling=LONG, prefill_only=True)
    kv = producer.engine.kv_cache.read_blocks(producer.step().computed[0].block_ids)
    driver.add("a", REFRAIN, sampling=LONG, kv_source=KvSource.IMPORT)
    driver.engine.kv_cache.write_blocks(driver.step().reserved[0].block_ids, kv)
    driver.engine.import_finished("a", num_computed_tokens=len(REFRAIN), first_token_id=tokens[0])
    assert driver.run()["a"].token_ids == tokens[1:]
    assert num_accepted(driver) > 10


def test_a_proposed_token_that_spoils_a_step_spoils_no_output(
    tiny_model: LoadedModel, request: pytest.FixtureRequest
) -> None:
    """A NaN in the KV of a wrong proposal reaches the tokens before it in the same step."""
    row = tiny_model.decoder._embedding.weight[251]
    before = row.clone()
    request.addfinalizer(lambda: row.copy_(before))
    sampling = replace(BIASED, num_logprobs=1)
    first = collected(make_driver(tiny_model), PROMPT, sampling=sampling).token_ids[0]
    prompt = [PROMPT[-1], first, 251, 251, 9, *PROMPT]  # which the first output token leads back to
    expected = collected(make_driver(tiny_model), prompt, sampling=sampling)
    assert expected.token_ids[0] == first
    driver = speculating(tiny_model)
    driver.add("a", prompt, sampling=sampling)
    driver.step()
    row.fill_(float("nan"))  # the prompt's KV is there
    assert_equal(driver.run()["a"], expected)
    assert driver.results[1].outputs == ()
    assert num_proposed(driver) == driver.results[1].stats.num_proposed_tokens > 0
    assert driver.engine.num_free_blocks == 32


@pytest.fixture
def queue(seed: int) -> Iterator[ThreadQueue]:
    queue = ThreadQueue(seed)
    yield queue
    queue.close()


def test_where_steps_overlap_a_sequence_waits_for_what_it_speculates_on(
    tiny_model: LoadedModel, queue: ThreadQueue
) -> None:
    config = EngineConfig(block_size=4, num_blocks=32, max_model_len=100, speculation="ngram")
    capture = RerunCapture()
    driver = EngineDriver(tiny_model, config, queue=queue, graph_capture=capture)
    driver.engine.capture()
    expected = collected(make_driver(tiny_model), REFRAIN, sampling=LONG)
    assert_equal(collected(driver, REFRAIN, sampling=LONG), expected)
    assert num_accepted(driver) > 10
    decodes = [r.stats for r in driver.results if r.stats.num_decode_tokens]
    assert all(stats.is_graph for stats in decodes), "with proposals or without"
    assert capture.num_replays == sum(r.stats.is_graph for r in driver.results)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("is_drafted", [False, True], ids=["looked up", "drafted"])
@pytest.mark.parametrize("number", range(4))
def test_random_runs_give_what_each_gives_alone(
    tiny_model: LoadedModel,
    queue: ThreadQueue,
    seed: int,
    number: int,
    is_drafted: bool,
    lag: int,
) -> None:
    rng = random.Random(seed + number)
    config = EngineConfig(
        block_size=4,
        num_blocks=rng.choice([18, 24, 60]),
        max_model_len=64,
        max_num_seqs=rng.choice([3, 8, 20]),
        max_num_batched_tokens=rng.choice([8, 64]),
        speculation="ngram",
        num_speculative_tokens=rng.choice([2, 5, 12]),
        graph_batch_sizes=rng.choice([None, (1, 4), (2, 20)]),
    )
    extra: dict[str, object] = {"queue": queue} if lag else {}
    if lag or rng.random() < 0.5:
        extra["graph_capture"] = RerunCapture()
    driver = EngineDriver(tiny_model, config, draft=tiny_model if is_drafted else None, **extra)
    driver.engine.capture()
    if is_drafted:
        driver.engine.set_step_cost(rng.choice(DRAFTED_COSTS))
    phrases = [[rng.randrange(250) for _ in range(4)] for _ in range(3)]
    requests, aborted = {}, set()
    for i in range(16):
        prompt = [token for _ in range(rng.randint(1, 5)) for token in rng.choice(phrases)]
        sampling = SamplingParams(
            max_tokens=rng.randint(1, 40),
            temperature=rng.choice([0.0, 0.0, 0.8]),
            seed=rng.getrandbits(64),
            logit_bias=rng.choice([{}, FEW]),
            presence_penalty=rng.choice([0.0, 0.0, 0.5]),
            num_logprobs=rng.choice([None, None, 2]),
            min_tokens=rng.choice([0, 9]),
            stop_token_ids=(rng.choice([31, 250]),),
        )
        mask = rng.choice([None, None, AutomatonMask(random_edges(rng, num_states=6))])
        requests[str(i)] = (prompt, sampling, mask)
    waiting = [*requests]
    while waiting or driver.engine.has_work():
        if waiting and rng.random() < 0.3:
            name = waiting.pop()
            prompt, sampling, mask = requests[name]
            tenant = rng.choice([b"a", b"b"])
            driver.add(name, prompt, sampling=sampling, token_mask=mask, tenant=tenant)
        alive = [n for n, found in driver.sequences.items() if found.finish_reason is None]
        if alive and rng.random() < 0.03:
            aborted.add(rng.choice(alive))
            driver.engine.abort([*aborted][-1])
        driver.step()
    assert driver.engine.num_free_blocks == config.num_blocks
    if driver.engine.drafter is not None:
        assert driver.engine.drafter.num_free_blocks == config.num_blocks
    driver.check_compute_time()
    for name, (prompt, sampling, mask) in requests.items():
        alone = make_driver(tiny_model, max_model_len=64)
        expected = collected(alone, prompt, sampling=sampling, token_mask=mask)
        found = driver.sequences[name]
        if name in aborted:
            assert found.token_ids == expected.token_ids[: len(found.token_ids)]
        else:
            assert_equal(found, expected)


@pytest.mark.parametrize(
    ("proposed", "sampled", "expected"),
    [
        ((), [5], [5]),
        ((5, 6), [5, 6, 7], [5, 6, 7]),
        ((5, 6), [5, 9, 7], [5, 9]),
        ((5, 6), [9, 6, 7], [9]),
        ((5, 6), [5, 6, INVALID], [5, 6]),
        ((5, 6), [5, INVALID, 7], [5]),
        ((5, 6), [INVALID, 6, 7], [INVALID]),
    ],
)
def test_what_is_behind_a_wrong_or_spoilt_token_does_not_count(
    proposed: tuple[int, ...], sampled: list[int], expected: list[int]
) -> None:
    tokens = [SampledToken(token, is_valid=token != INVALID) for token in sampled]
    assert [token.token_id for token in verified(proposed, tokens)] == expected


def test_an_unknown_way_is_refused(tiny_model: LoadedModel) -> None:
    with pytest.raises(InvalidConfigError, match="speculation is 'guess', must be off or ngram"):
        make_driver(tiny_model, speculation="guess")
    with pytest.raises(InvalidConfigError, match="num_speculative_tokens is 0"):
        speculating(tiny_model, num_speculative_tokens=0)
    with pytest.raises(InvalidConfigError, match="speculation_output_bytes is -1"):
        speculating(tiny_model, speculation_output_bytes=-1)
