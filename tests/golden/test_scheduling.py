"""Greedy tokens are transformers', however the engine schedules: in float32, six families.

With shared, preempted and imported KV. That a family's recipe is right is tested with its recipe.
"""

from collections.abc import Sequence

import pytest
from support.engine_driver import EngineDriver
from support.oracle import Oracle
from support.random_tokens import random_tokens

from pagoda_engine import EngineConfig, KvSource, SamplingParams

MAX_TOKENS = 20
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
pytestmark = pytest.mark.slow


SHARED = random_tokens(40)
PROMPTS = [
    random_tokens(5),
    SHARED + random_tokens(24),  # a multiple of the block size
    SHARED + random_tokens(9),
    random_tokens(83),
]


def config(**fields: object) -> EngineConfig:
    values = {"block_size": 8, "num_blocks": 128, "dtype": "float32", "max_model_len": 512}
    return EngineConfig(**{**values, **fields})


def expected(oracle: Oracle, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    return [oracle.greedy(prompt, MAX_TOKENS) for prompt in prompts]


def test_greedy_tokens_after_prefix_hits(oracle: Oracle) -> None:
    driver = EngineDriver(oracle.model, config())
    driver.add("first", PROMPTS[1], sampling=GREEDY)
    driver.run()
    driver.add("again", PROMPTS[1], sampling=GREEDY)
    driver.add("shared", PROMPTS[2], sampling=GREEDY)
    outputs = driver.run()
    cached = {r.sequence_id: r.num_cached_tokens for s in driver.results for r in s.reserved}
    assert cached == {"first": 0, "again": 56, "shared": 40}
    tokens = expected(oracle, [PROMPTS[1], PROMPTS[1], PROMPTS[2]])
    assert [outputs[i].token_ids for i in ("first", "again", "shared")] == tokens


def test_greedy_tokens_while_two_sequences_share_blocks(oracle: Oracle) -> None:
    driver = EngineDriver(oracle.model, config())
    driver.add("one", PROMPTS[1], sampling=GREEDY)
    driver.step()  # its prompt blocks are reusable from now on
    driver.add("two", PROMPTS[2], sampling=GREEDY)
    reservation = driver.step().reserved[0]
    assert reservation.num_cached_tokens == 40
    outputs = driver.run()
    tokens = expected(oracle, [PROMPTS[1], PROMPTS[2]])
    assert [outputs["one"].token_ids, outputs["two"].token_ids] == tokens


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_tokens_after_preemption(oracle: Oracle, enable_prefix_caching: bool) -> None:
    prompts = [prompt[:20] for prompt in PROMPTS]
    driver = EngineDriver(
        oracle.model,
        config(
            block_size=4,
            num_blocks=18,
            enable_prefix_caching=enable_prefix_caching,
            max_num_batched_tokens=32,
        ),
    )
    assert driver.generate(prompts, sampling=GREEDY) == expected(oracle, prompts)
    assert driver.num_preempted > 0


def test_greedy_tokens_after_a_failover(oracle: Oracle) -> None:
    tokens = oracle.greedy(PROMPTS[2], MAX_TOKENS)
    driver = EngineDriver(oracle.model, config())
    driver.add("retry", PROMPTS[2], sampling=GREEDY, output_token_ids=tuple(tokens[:9]))
    output = driver.run()["retry"]
    assert output.first_index == 9
    assert output.token_ids == tokens[9:]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "whole-blocks", "partial", "long"])
def test_greedy_tokens_after_kv_transfer(oracle: Oracle, prompt: list[int]) -> None:
    tokens = oracle.greedy(prompt, MAX_TOKENS)
    producer = EngineDriver(oracle.model, config(max_num_batched_tokens=24))
    consumer = EngineDriver(oracle.model, config())
    consumer.add("x", prompt, sampling=GREEDY, kv_source=KvSource.IMPORT)
    reservation = consumer.step().reserved[0]
    assert not consumer.engine.has_work()
    producer.add("x", prompt, sampling=GREEDY, prefill_only=True)
    producer.run()
    for computed in (c for result in producer.results for c in result.computed):
        blocks = producer.engine.kv_cache.read_blocks(computed.block_ids)
        first, end = computed.first_block, computed.first_block + len(computed.block_ids)
        consumer.engine.kv_cache.write_blocks(reservation.block_ids[first:end], blocks)
    producer.engine.release("x")
    assert producer.engine.num_free_blocks == 128
    first_token = producer.sequences["x"].token_ids
    consumer.engine.import_finished(
        "x", num_computed_tokens=len(prompt), first_token_id=first_token[0]
    )
    output = consumer.run()["x"]
    assert output.first_index == 1
    assert first_token + output.token_ids == tokens


@pytest.mark.parametrize("num_computed_tokens", [0, 19, 48])
def test_greedy_tokens_after_an_import_that_broke_off(
    oracle: Oracle, num_computed_tokens: int
) -> None:
    prompt = PROMPTS[1]
    producer = EngineDriver(oracle.model, config())
    producer.add("x", prompt, sampling=GREEDY, prefill_only=True)
    computed = producer.step().computed[0]
    consumer = EngineDriver(oracle.model, config())
    consumer.add("x", prompt, sampling=GREEDY, kv_source=KvSource.IMPORT)
    reservation = consumer.step().reserved[0]
    num_blocks = -(-num_computed_tokens // 8)
    blocks = producer.engine.kv_cache.read_blocks(computed.block_ids[:num_blocks])
    consumer.engine.kv_cache.write_blocks(reservation.block_ids[:num_blocks], blocks)
    consumer.engine.import_finished("x", num_computed_tokens=num_computed_tokens)
    assert consumer.run()["x"].token_ids == oracle.greedy(prompt, MAX_TOKENS)


def test_seeded_sampling_is_the_same_alone_in_batches_and_after_preemption(oracle: Oracle) -> None:
    prompts = [prompt[:20] for prompt in PROMPTS]

    def sampling(seed: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=MAX_TOKENS, temperature=0.9, top_p=0.95, seed=seed, ignore_eos=True
        )

    def run(numbers: Sequence[int], **fields: object) -> tuple[list[list[int]], int]:
        driver = EngineDriver(oracle.model, config(**fields))
        for i in numbers:
            driver.add(str(i), prompts[i], sampling=sampling(1000 + i))
        outputs = driver.run()
        return [outputs[str(i)].token_ids for i in numbers], driver.num_preempted

    alone = [run([i])[0][0] for i in range(4)]
    together, _ = run(range(4))
    preempted, num_preempted = run(range(4), block_size=4, num_blocks=18)
    assert together == alone
    assert preempted == alone
    assert num_preempted > 0
    assert len({tuple(tokens) for tokens in alone}) == 4
