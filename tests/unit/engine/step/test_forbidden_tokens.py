"""allowed_token_ids and bad_words: what is not allowed never comes, whatever the schedule."""

import random
from collections.abc import Sequence

import pytest
from support.automaton_mask import AutomatonMask
from support.engine_driver import EngineDriver
from support.thread_queue import ThreadQueue
from support.tiny_checkpoints import EOS_TOKEN_ID
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import EngineConfig, FinishReason, LoadedModel, SamplingParams


def generate(model: LoadedModel, prompt: list[int], sampling: SamplingParams) -> list[int]:
    return make_driver(model).generate([prompt], sampling=sampling)[0]


def has(tokens: Sequence[int], word: Sequence[int]) -> bool:
    return any(tuple(tokens[i : i + len(word)]) == tuple(word) for i in range(len(tokens)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_come(tiny_model: LoadedModel, temperature: float) -> None:
    sampling = SamplingParams(
        max_tokens=30, temperature=temperature, ignore_eos=True, allowed_token_ids=(3, 70, 201)
    )
    assert set(generate(tiny_model, PROMPT, sampling)) <= {3, 70, 201}


def test_the_last_token_of_a_word_does_not_come_after_the_others(tiny_model: LoadedModel) -> None:
    free = greedy_tokens(tiny_model, PROMPT, 8)
    words = (
        (free[5],),
        (free[2], free[3]),
        (PROMPT[-1], free[0]),
    )  # not all output
    tokens = generate(tiny_model, PROMPT, greedy(8, bad_words=words))
    assert tokens[:3] == free[:3]
    assert tokens[3] != free[3]
    assert not any(has(tokens, word) for word in words[:2])


def test_nothing_left_ends_its_own_sequence(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    sampling = greedy(8, allowed_token_ids=(5, 6), bad_words=((6, 5), (5,), (6, 6)))
    driver.add("a", PROMPT, sampling=sampling)
    driver.add("b", OTHER, sampling=greedy())
    outputs = driver.run()
    assert outputs["a"].token_ids == [6]
    assert outputs["a"].finish_reason is FinishReason.INVALID
    assert "no next token is left by allowed_token_ids and bad_words" in outputs["a"].error
    assert outputs["b"].token_ids == greedy_tokens(tiny_model, OTHER)
    assert driver.engine.num_free_blocks == 32


def test_min_tokens_holds_among_the_allowed(tiny_model: LoadedModel) -> None:
    sampling = greedy(9, ignore_eos=False, allowed_token_ids=(EOS_TOKEN_ID, 7), min_tokens=4)
    assert generate(tiny_model, PROMPT, sampling)[:4] == [7] * 4


def test_a_grammar_and_allowed_tokens_must_both_allow(tiny_model: LoadedModel) -> None:
    mask = AutomatonMask({0: {3: 0, 4: 0, 5: 0}})
    driver = make_driver(tiny_model)
    sampling = greedy(12, allowed_token_ids=(4, 5, 6), bad_words=((4, 4),))
    driver.add("a", PROMPT, sampling=sampling, token_mask=mask)
    tokens = driver.run()["a"].token_ids
    assert set(tokens) <= {4, 5}
    assert not has(tokens, (4, 4))


def test_overlapped_steps_change_nothing(tiny_model: LoadedModel, seed: int) -> None:
    rng = random.Random(seed)
    queue = ThreadQueue(seed)
    config = EngineConfig(block_size=4, num_blocks=20, max_model_len=100, max_num_batched_tokens=16)
    driver = EngineDriver(tiny_model, config, queue=queue)
    expected = {}
    for name in map(str, range(8)):
        prompt = [rng.randrange(256) for _ in range(rng.randint(1, 20))]
        allowed = tuple(rng.sample(range(256), 6)) if rng.random() < 0.7 else ()
        tokens = allowed or range(256)
        words = tuple(tuple(rng.choices(tokens, k=2)) for _ in range(rng.choice([0, 9])))
        sampling = SamplingParams(
            max_tokens=20, seed=rng.randrange(99), min_tokens=5, ignore_eos=True,
            stop_token_ids=allowed[:1], allowed_token_ids=allowed, bad_words=words,
        )  # fmt: skip
        driver.add(name, prompt, sampling=sampling)
        expected[name] = generate(tiny_model, prompt, sampling)
        assert not any(has(expected[name], word) for word in words)
    outputs = driver.run()
    queue.close()
    assert {name: output.token_ids for name, output in outputs.items()} == expected
