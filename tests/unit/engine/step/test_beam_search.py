"""Beams in steps: what they share, and what befalls a search as a whole."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.engine_driver import EngineDriver
from support.rerun_capture import RerunCapture
from support.thread_queue import ThreadQueue
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import (
    BeamSearchParams,
    EngineConfig,
    FinishReason,
    Hypothesis,
    KvSource,
    LoadedModel,
    SamplingParams,
    load_model,
)


def searched(width: int = 3, max_tokens: int = 12, **fields: object) -> SamplingParams:
    return greedy(max_tokens, beam_search=BeamSearchParams(width), **fields)


def alone(model: LoadedModel, prompt: list[int], **fields: object) -> tuple[Hypothesis, ...]:
    driver = make_driver(model, num_blocks=64)
    driver.add("a", prompt, sampling=searched(**fields))
    return driver.run()["a"].hypotheses


def num_proposed(driver: EngineDriver) -> int:
    return sum(result.stats.num_proposed_tokens for result in driver.results)


@pytest.fixture
def queue(seed: int) -> Iterator[ThreadQueue]:
    queue = ThreadQueue(seed)
    yield queue
    queue.close()


def test_the_prompt_is_computed_once_and_beams_share_its_blocks(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=searched(width=4))
    while not any(result.stats.num_decode_tokens == 4 for result in driver.results):
        driver.step()
    assert sum(result.stats.num_prefill_tokens for result in driver.results) == len(PROMPT)
    num_full = len(PROMPT) // 4
    assert 32 - driver.engine.num_free_blocks == num_full + 4  # a partly filled one for each
    driver.run()
    assert driver.engine.num_free_blocks == 32
    assert driver.sequences["a"].num_prefilled_tokens == len(PROMPT)
    driver.check_compute_time()


def test_an_output_says_that_the_prompt_is_computed(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=searched(width=4))
    driver.run()
    said = [o for result in driver.results for o in result.outputs if not o.finish_reason]
    assert [(o.token_ids, o.num_prefilled_tokens) for o in said] == [((), len(PROMPT))]
    (step,) = (r for r in driver.results if said[0] in r.outputs)
    assert step.stats.num_prefill_tokens, "with the end of the prompt"


def test_a_width_of_one_is_greedy(tiny_model: LoadedModel) -> None:
    (hypothesis,) = alone(tiny_model, PROMPT, width=1, max_tokens=6)
    assert list(hypothesis.token_ids) == greedy_tokens(tiny_model, PROMPT)


def test_nothing_is_proposed_to_a_search_and_nothing_learnt_of_it(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, speculation="ngram", num_blocks=64)
    untaught = make_driver(tiny_model, speculation="ngram", num_blocks=64)
    untaught.add("told", PROMPT, sampling=greedy(20))
    untaught.run()
    driver.add("search", PROMPT, sampling=searched(width=1, max_tokens=20))
    driver.run()
    driver.add("told", PROMPT, sampling=greedy(20))
    driver.run()
    said, expected = driver.sequences["told"], untaught.sequences["told"]
    assert said.token_ids == expected.token_ids
    assert num_proposed(driver) == num_proposed(untaught), "the search taught something"
    before = num_proposed(driver)
    driver.add("again", PROMPT, sampling=searched(max_tokens=20))
    assert driver.run()["again"].hypotheses == alone(tiny_model, PROMPT, max_tokens=20)
    assert num_proposed(driver) == before
    driver.add("retold", PROMPT, sampling=greedy(20))
    driver.run()
    assert num_proposed(driver) > before, "there was something to propose"


def test_overlapped_steps_and_graphs_find_the_same(
    tiny_model: LoadedModel, queue: ThreadQueue
) -> None:
    config = EngineConfig(block_size=4, num_blocks=64, max_model_len=100, max_num_seqs=8)
    driver = EngineDriver(tiny_model, config, queue=queue, graph_capture=RerunCapture())
    driver.engine.capture()
    driver.add("a", PROMPT, sampling=searched())
    driver.add("b", OTHER, sampling=greedy(20))
    driver.add("c", OTHER, sampling=searched(2))
    driver.run()
    assert any(result.stats.is_graph for result in driver.results)
    found = driver.sequences
    for name, prompt, width in (("a", PROMPT, 3), ("c", OTHER, 2)):
        expected = alone(tiny_model, prompt, width=width)
        assert [h.token_ids for h in found[name].hypotheses] == [h.token_ids for h in expected]
    assert found["b"].token_ids == greedy_tokens(tiny_model, OTHER, 20)


def test_searches_that_lose_their_blocks_find_the_same(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, num_blocks=24)
    prompts = {"a": PROMPT, "b": OTHER, "c": PROMPT[::-1]}
    for name, prompt in prompts.items():
        driver.add(name, prompt, sampling=searched(max_tokens=20))
    driver.run()
    assert driver.num_preempted
    for name, prompt in prompts.items():
        assert driver.sequences[name].hypotheses == alone(tiny_model, prompt, max_tokens=20)
    assert driver.engine.num_free_blocks == 24


def test_an_abort_frees_every_beam(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=searched())
    for _ in range(5):
        driver.step()
    output = driver.engine.abort("a")
    assert output is not None
    assert (output.finish_reason, output.first_index) == (FinishReason.ABORT, 0)
    assert driver.engine.num_free_blocks == 32
    driver.run()


def test_an_imported_prompt_is_searched_from_its_last_token(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=searched(), kv_source=KvSource.IMPORT)
    driver.step()
    driver.engine.import_finished("a", num_computed_tokens=0)
    assert driver.run()["a"].hypotheses == alone(tiny_model, PROMPT)


def test_logprobs_of_every_output(tiny_model: LoadedModel) -> None:
    for hypothesis in alone(tiny_model, PROMPT, num_logprobs=2):
        assert tuple(position.token_id for position in hypothesis.logprobs) == hypothesis.token_ids
        assert {len(position.top) for position in hypothesis.logprobs} == {2}
        total = sum(position.logprob for position in hypothesis.logprobs)
        assert hypothesis.cumulative_logprob == pytest.approx(total)


def test_logits_that_are_not_finite_end_the_search(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=searched())
    for _ in range(4):
        driver.step()
    logits = tiny_model.decoder.logits

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        found = logits(hidden)
        found[1] = float("nan")  # of one beam
        return found

    monkeypatch.setattr(tiny_model.decoder, "logits", broken)
    driver.run()
    assert driver.sequences["a"].finish_reason is FinishReason.ERROR
    assert driver.engine.num_free_blocks == 32


def test_outputs_do_not_depend_on_how_many_alternatives_a_neighbour_asks_for(
    tiny_folder: Path,
) -> None:
    """In bf16 many logits are equal, and a search takes the likeliest few."""
    model = load_model(tiny_folder, EngineConfig(dtype="bfloat16", max_model_len=100))
    for seed in range(20):
        prompt = random.Random(seed).choices(range(256), k=12)
        driver = make_driver(model, dtype="bfloat16", num_blocks=64)
        driver.add("a", prompt, sampling=searched(width=4, max_tokens=24))
        driver.add("b", OTHER, sampling=greedy(24, num_logprobs=20))
        expected = alone(model, prompt, width=4, max_tokens=24)
        assert driver.run()["a"].hypotheses == expected
