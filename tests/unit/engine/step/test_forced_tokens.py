"""Tokens that a grammar leaves no choice about: appended at once, computed with the next choice."""

import random
from collections.abc import Sequence

import pytest
from support.automaton_mask import AutomatonMask, Edges, OneByOne, random_edges
from support.engine_driver import Collected, EngineDriver
from support.tiny_checkpoints import EOS_TOKEN_ID
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import FinishReason, KvSource, LoadedModel, SamplingParams

TEN, NINE = range(10), range(100, 109)


def run_of(tokens: Sequence[int], *, first: int, last: int) -> dict[int, dict[int, int]]:
    """Return states from `first` on, each left by one of the tokens; the last leads to `last`."""
    states = [*range(first, first + len(tokens)), last]
    return {states[i]: {token: states[i + 1]} for i, token in enumerate(tokens)}


# Any of ten tokens, then nine forced ones, over and over.
REFRAIN: Edges = {0: dict.fromkeys(TEN, 1), **run_of(NINE, first=1, last=0)}
SAMPLED = SamplingParams(max_tokens=24, seed=5, ignore_eos=True)
PENALISED = SamplingParams(max_tokens=24, seed=5, ignore_eos=True, frequency_penalty=0.7)


def stepwise(
    model: LoadedModel, edges: Edges, prompt: Sequence[int], **fields: object
) -> Collected:
    """Return what comes out one token at a time, with the engine to itself."""
    driver = make_driver(model)
    driver.add("a", prompt, token_mask=OneByOne(edges), **fields)
    return driver.run()["a"]


def num_steps(driver: EngineDriver) -> int:
    return sum(result.stats.num_sequences > 0 for result in driver.results)


def test_forced_tokens_come_with_the_token_before_them(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(30), token_mask=AutomatonMask(REFRAIN))
    sizes = [[len(o.token_ids) for o in driver.step().outputs] for _ in range(3)]
    assert sizes == [[10], [10], [10]]
    assert not driver.engine.has_work()
    found = driver.sequences["a"]
    assert found.finish_reason is FinishReason.LENGTH
    assert found.token_ids == stepwise(tiny_model, REFRAIN, PROMPT, sampling=greedy(30)).token_ids
    stats = [result.stats for result in driver.results]
    assert [s.num_decode_tokens for s in stats] == [0, 1, 1]
    assert [s.num_prefill_tokens for s in stats] == [len(PROMPT), 9, 9]


def test_forced_tokens_are_not_counted_as_a_prompts(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(30), token_mask=AutomatonMask(REFRAIN))
    stats = [driver.step().stats for _ in range(3)]
    assert [s.num_prompt_tokens for s in stats] == [len(PROMPT), 0, 0]
    assert [s.num_forced_tokens for s in stats] == [0, 9, 9]


def test_forced_tokens_are_load_until_they_are_computed(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(11), token_mask=AutomatonMask(REFRAIN))
    driver.step()
    assert driver.engine.load().num_waiting_tokens == 9
    driver.step()
    assert driver.engine.load().num_waiting_tokens == 0


def test_blocks_of_forced_tokens_are_reused(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT[:3], sampling=greedy(21), token_mask=AutomatonMask(REFRAIN))
    tokens = [*PROMPT[:3], *driver.run()["a"].token_ids]
    driver.add("b", tokens[:23], sampling=greedy(1))
    assert driver.step().reserved[0].num_cached_tokens == 20


def test_length_ends_a_forced_run(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(14), token_mask=AutomatonMask(REFRAIN))
    found = driver.run()["a"]
    assert found.token_ids[11:] == [100, 101, 102]
    assert found.finish_reason is FinishReason.LENGTH
    assert driver.engine.num_free_blocks == 32


@pytest.mark.parametrize("params", [{}, {"num_logprobs": 1}], ids=["at once", "logprobs"])
@pytest.mark.parametrize("stop", [EOS_TOKEN_ID, 102])
def test_forced_stop_token_ends_the_output_before_min_tokens(
    tiny_model: LoadedModel, stop: int, params: dict[str, object]
) -> None:
    sampling = greedy(40, ignore_eos=False, stop_token_ids=(102,), min_tokens=20, **params)
    edges = {0: dict.fromkeys(TEN, 1), **run_of([100, 101, stop, 103], first=1, last=0)}
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=sampling, token_mask=AutomatonMask(edges))
    found = driver.run()["a"]
    assert found.token_ids[1:] == [100, 101, stop]
    assert (found.finish_reason, found.matched_stop_token_id) == (FinishReason.STOP, stop)
    assert found.error == ""


def test_min_tokens_takes_the_way_that_is_no_end(tiny_model: LoadedModel) -> None:
    edges = {0: {EOS_TOKEN_ID: 1, 7: 0}, 1: {}}
    sampling = greedy(9, ignore_eos=False, min_tokens=5, logit_bias={EOS_TOKEN_ID: 1000.0})
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=sampling, token_mask=AutomatonMask(edges))
    assert driver.run()["a"].token_ids == [7] * 5 + [EOS_TOKEN_ID]


def test_logprobs_are_the_models_own_for_forced_tokens_too(tiny_model: LoadedModel) -> None:
    sampling = greedy(20, num_logprobs=1)
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=sampling, token_mask=AutomatonMask(REFRAIN))
    found = driver.run()["a"]
    assert found.token_ids == stepwise(tiny_model, REFRAIN, PROMPT, sampling=greedy(20)).token_ids
    assert [lp.token_id for lp in found.logprobs] == found.token_ids
    assert any(lp.top[0][0] != lp.token_id for lp in found.logprobs)
    assert num_steps(driver) == 20


def test_forced_tokens_count_for_penalties(tiny_model: LoadedModel) -> None:
    edges = {0: {3: 1, 4: 1}, **run_of([3, 3, 3], first=1, last=0)}
    sampling = greedy(20, frequency_penalty=2.0, logit_bias={3: 10.0})
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=sampling, token_mask=AutomatonMask(edges))
    tokens = driver.run()["a"].token_ids
    assert tokens == stepwise(tiny_model, edges, PROMPT, sampling=sampling).token_ids
    assert tokens[::4] == [3, 3, 4, 4, 4]


@pytest.mark.parametrize("max_run", [4, 50])
@pytest.mark.parametrize("sampling", [greedy(24), SAMPLED, PENALISED])
def test_output_cut_anywhere_goes_on_the_same(
    tiny_model: LoadedModel, sampling: SamplingParams, max_run: int
) -> None:
    tokens = stepwise(tiny_model, REFRAIN, PROMPT, sampling=sampling).token_ids
    for cut in range(len(tokens)):
        driver = make_driver(tiny_model)
        mask = AutomatonMask(REFRAIN, max_run=max_run)
        fields = {"output_token_ids": tuple(tokens[:cut]), "token_mask": mask}
        driver.add("a", PROMPT, sampling=sampling, **fields)
        assert driver.run()["a"].token_ids == tokens[cut:], cut


@pytest.mark.parametrize("cut", [0, 1, 4, 9, 10])
@pytest.mark.parametrize("params", [{}, {"num_logprobs": 1}], ids=["at once", "logprobs"])
def test_first_token_from_another_engine_brings_what_is_forced_after_it(
    tiny_model: LoadedModel, cut: int, params: dict[str, object]
) -> None:
    sampling = greedy(24, **params)
    tokens = stepwise(tiny_model, REFRAIN, PROMPT, sampling=greedy(24)).token_ids
    fields = {
        "sampling": sampling,
        "output_token_ids": tuple(tokens[:cut]),
        "token_mask": AutomatonMask(REFRAIN),
    }
    producer, driver = make_driver(tiny_model), make_driver(tiny_model)
    producer.add("a", PROMPT, prefill_only=True, **fields)
    result = producer.step()
    (first,) = result.outputs[0].token_ids
    assert first == tokens[cut]
    driver.add("a", PROMPT, kv_source=KvSource.IMPORT, **fields)
    reserved = driver.step().reserved[0].block_ids
    kv = producer.engine.kv_cache.read_blocks(result.computed[0].block_ids)
    driver.engine.kv_cache.write_blocks(reserved, kv)
    driver.engine.import_finished("a", num_computed_tokens=len(PROMPT) + cut, first_token_id=first)
    found = driver.run()["a"]
    assert (found.first_index, found.token_ids) == (cut + 1, tokens[cut + 1 :])
    assert [lp.token_id for lp in found.logprobs] in ([], found.token_ids)


def test_import_that_ends_with_what_its_first_token_forces(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    fields = {"token_mask": AutomatonMask(REFRAIN), "kv_source": KvSource.IMPORT}
    driver.add("a", PROMPT, sampling=greedy(4), **fields)
    driver.step()
    driver.engine.import_finished("a", num_computed_tokens=len(PROMPT), first_token_id=3)
    found = driver.run()["a"]
    assert (found.first_index, found.token_ids) == (1, [100, 101, 102])
    assert found.finish_reason is FinishReason.LENGTH
    assert driver.engine.num_free_blocks == 32


def test_grammar_that_fails_ends_its_own_sequences_only(tiny_model: LoadedModel) -> None:
    now, later = {0: {}}, {0: dict.fromkeys(TEN, 1), **run_of([100, 101], first=1, last=3), 3: {}}
    driver = make_driver(tiny_model)
    driver.add("now", PROMPT, sampling=greedy(), token_mask=AutomatonMask(now))
    driver.add("later", PROMPT[1:], sampling=greedy(), token_mask=AutomatonMask(later))
    driver.add("other", OTHER, sampling=greedy())
    driver.run()
    for name, num_tokens in (("now", 0), ("later", 3)):
        ended = driver.sequences[name]
        assert ended.finish_reason is FinishReason.INVALID
        assert ended.error == "nothing leaves this state"
        assert len(ended.token_ids) == num_tokens
    assert driver.sequences["other"].token_ids == greedy_tokens(tiny_model, OTHER)
    assert driver.engine.num_free_blocks == 32
    assert num_steps(driver) == 6


def test_grammar_that_fails_frees_no_block_that_is_being_exported(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=12)
    mask = AutomatonMask({0: {}})
    driver.add("a", PROMPT, sampling=greedy(), token_mask=mask, prefill_only=True)
    exported = driver.step().computed[0].block_ids
    assert driver.step().outputs[0].finish_reason is FinishReason.INVALID
    driver.add("b", OTHER[:16], sampling=greedy(), prefill_only=True)
    assert not {*exported} & {*driver.step().reserved[0].block_ids}
    driver.engine.release("a")
    driver.engine.abort("b")
    assert driver.engine.num_free_blocks == 32


@pytest.mark.parametrize("number", range(4))
def test_many_grammars_in_a_small_pool_give_what_each_gives_alone(
    tiny_model: LoadedModel, seed: int, number: int
) -> None:
    rng = random.Random(seed + number)
    driver = make_driver(
        tiny_model, num_blocks=14, max_model_len=52, max_num_batched_tokens=rng.choice([5, 9, 64])
    )
    expected: dict[str, Collected] = {}
    for i in range(12):
        edges, prompt = random_edges(rng), [rng.randrange(250) for _ in range(rng.randint(1, 9))]
        sampling = SamplingParams(
            max_tokens=rng.randint(1, 40),
            temperature=rng.choice([0.0, 1.0]),
            seed=rng.getrandbits(64),
            presence_penalty=rng.choice([0.0, 1.5]),
            num_logprobs=rng.choice([None, None, 0]),
            min_tokens=rng.choice([0, 9]),
        )
        expected[str(i)] = stepwise(tiny_model, edges, prompt, sampling=sampling)
        cut = rng.randint(0, max(len(expected[str(i)].token_ids) - 1, 0))
        output = expected[str(i)].token_ids[:cut]
        mask = AutomatonMask(edges, max_run=rng.choice([2, 50]))
        fields = {"output_token_ids": tuple(output), "token_mask": mask}
        driver.add(str(i), prompt, sampling=sampling, **fields)
    driver.run()
    for name, wanted in expected.items():
        found = driver.sequences[name]
        assert found.token_ids == wanted.token_ids[found.first_index :]
        assert (found.finish_reason, found.error) == (wanted.finish_reason, wanted.error)
    assert driver.engine.num_free_blocks == 14
