"""Shares of steps' time: nothing is lost, nothing counts twice, tokens are the measure."""

import random
from types import SimpleNamespace
from typing import cast

from support.engine_driver import EngineDriver
from support.seeds import seed_of_tests
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import EngineConfig, LoadedModel
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.step.compute_time import share_out


def entry(num_new_tokens: int, *, has_ended: bool = False, is_prefill: bool = False):  # type: ignore[no-untyped-def]
    sequence = SimpleNamespace(
        has_ended=has_ended,
        state=SequenceState.RUNNING,
        compute_ns=0,
        num_prefilled_tokens=0,
    )
    return ScheduledSequence(cast(Sequence, sequence), 0, num_new_tokens, is_prefill, True)


def test_shares_go_by_tokens_and_sum_to_the_nanosecond() -> None:
    rng = random.Random(seed_of_tests())
    for _ in range(200):
        batch = [entry(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 20))]
        nanoseconds = rng.randrange(10**9)
        assert share_out(batch, nanoseconds) == 0
        num_tokens = sum(e.num_new_tokens for e in batch)
        assert sum(e.sequence.compute_ns for e in batch) == nanoseconds
        for e in batch:
            fair = nanoseconds * e.num_new_tokens / num_tokens
            assert abs(e.sequence.compute_ns - fair) <= num_tokens


def test_who_has_ended_is_charged_no_more() -> None:
    ended, going_on = entry(3, has_ended=True), entry(1, is_prefill=True)
    assert share_out([ended, going_on], 1000) == 0
    assert (ended.sequence.compute_ns, going_on.sequence.compute_ns) == (0, 1000)
    assert going_on.sequence.num_prefilled_tokens == 1
    assert share_out([ended], 1000) == 1000


def test_all_measured_time_is_somebody_s(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(5))
    driver.step()
    driver.add("b", OTHER, sampling=greedy(9))
    driver.run()
    driver.check_compute_time()
    assert all(found.compute_ns > 0 for found in driver.sequences.values())


def test_prefilled_tokens_are_those_that_no_cache_had(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(2))
    driver.run()
    driver.add("b", PROMPT, sampling=greedy(2))
    driver.run()
    num_cached = driver.results[-1].reserved or [
        r for result in driver.results for r in result.reserved if r.sequence_id == "b"
    ]
    assert driver.sequences["a"].num_prefilled_tokens == len(PROMPT)
    expected = len(PROMPT) - num_cached[-1].num_cached_tokens
    assert driver.sequences["b"].num_prefilled_tokens == expected < len(PROMPT)


def test_preempted_sequences_compute_again_and_pay_for_it(tiny_model: LoadedModel) -> None:
    config = EngineConfig(block_size=4, num_blocks=12, max_model_len=44, max_num_seqs=6)
    driver = EngineDriver(tiny_model, config)
    rng = random.Random(2)
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 8))] for _ in range(10)]
    driver.generate(prompts, sampling=greedy(16))
    driver.check_compute_time()
    assert driver.num_preempted > 3
    prefilled = sum(found.num_prefilled_tokens for found in driver.sequences.values())
    assert prefilled == sum(result.stats.num_prefill_tokens for result in driver.results)


def test_what_a_preemption_makes_compute_again_is_not_counted_as_a_prompts(
    tiny_model: LoadedModel,
) -> None:
    config = EngineConfig(block_size=4, num_blocks=12, max_model_len=44, max_num_seqs=6)
    driver = EngineDriver(tiny_model, config)
    rng = random.Random(2)
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 8))] for _ in range(10)]
    driver.generate(prompts, sampling=greedy(16))
    stats = [result.stats for result in driver.results]
    assert sum(s.num_prompt_tokens for s in stats) == sum(map(len, prompts))
    assert sum(s.num_resumed_tokens for s in stats) > 0


def test_what_a_failover_makes_compute_again_is_not_counted_as_a_prompts(
    tiny_model: LoadedModel,
) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, output_token_ids=(5, 6, 7), sampling=greedy(8))
    driver.run()
    stats = [result.stats for result in driver.results]
    assert sum(s.num_failed_over_tokens for s in stats) == len(PROMPT) + 3
    assert sum(s.num_prompt_tokens for s in stats) == 0


def test_an_abort_says_what_was_computed(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(50))
    for _ in range(3):
        driver.step()
    output = driver.engine.abort("a")
    assert output is not None
    assert output.num_prefilled_tokens == len(PROMPT)
    assert driver.run()["a"].compute_ns == output.compute_ns > 0
    assert driver.engine.abort("a") is None
    driver.check_compute_time()
