"""Logprobs of the prompt equal one forward of the whole prompt, whatever the schedule."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.engine_driver import Collected, EngineDriver
from support.thread_queue import ThreadQueue
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import (
    EngineConfig,
    FinishReason,
    InvalidSequenceError,
    KvSource,
    LoadedModel,
    TokenLogprobs,
    load_model,
)
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_kernels import plan_attention

CPU = torch.device("cpu")
MAX_ERROR = 1e-4
CONFIG = {"block_size": 4, "num_blocks": 32, "max_model_len": 100}


def reference(model: LoadedModel, prompt: Sequence[int]) -> torch.Tensor:
    """Return ``[T - 1, V]``, row i: logprobs of what follows token i, from a single forward."""
    shape, num = model.description, len(prompt)
    layout = shape.kv_layout(num, model.dtype)
    plan = plan_attention(
        seqlens_q=[num], context_lens=[num], block_tables=[[0]], block_size=num, device=CPU
    )
    with torch.inference_mode():
        logits = model.decoder.forward(
            torch.tensor(prompt), torch.arange(num), plan, KvCache(layout, 1, CPU), None
        )
    return torch.log_softmax(logits.float(), dim=-1)[:-1]


def check(
    found: dict[int, TokenLogprobs], expected: torch.Tensor, prompt: list[int], num: int
) -> None:
    """Another batch shape may round otherwise, and so swap what is nearly equal."""
    assert sorted(found) == list(range(1, len(prompt)))
    for index, row in enumerate(expected, start=1):
        logprobs, token_id = found[index], prompt[index]
        assert logprobs.token_id == token_id
        assert logprobs.logprob == pytest.approx(row[token_id].item(), abs=MAX_ERROR)
        least = int((row > row[token_id] + MAX_ERROR).sum()) + 1
        assert least <= logprobs.rank <= int((row >= row[token_id] - MAX_ERROR).sum())
        ids, values = [i for i, _ in logprobs.top], [value for _, value in logprobs.top]
        assert len({*ids}) == num
        assert values == pytest.approx(row[ids].tolist(), abs=MAX_ERROR)
        assert values == pytest.approx(row.topk(num).values.tolist(), abs=MAX_ERROR)


@pytest.mark.parametrize("num", [0, 3])
@pytest.mark.parametrize("budget", [5, 512])
def test_every_prompt_token_but_the_first_has_its_logprobs(
    tiny_model: LoadedModel, num: int, budget: int
) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=budget, max_num_seqs=4)
    driver.add("a", PROMPT, sampling=greedy(num_prompt_logprobs=num))
    driver.add("b", OTHER, sampling=greedy())
    outputs = driver.run()
    check(outputs["a"].prompt_logprobs, reference(tiny_model, PROMPT), PROMPT, num)
    assert outputs["a"].token_ids == greedy_tokens(tiny_model, PROMPT)
    assert outputs["b"].token_ids == greedy_tokens(tiny_model, OTHER)
    assert not outputs["b"].prompt_logprobs


def test_they_come_before_the_first_token(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=8)
    driver.add("a", PROMPT, sampling=greedy(num_prompt_logprobs=0))
    for _ in range(3):
        result = driver.step()
    *scored, first = result.outputs
    assert first.token_ids
    assert not first.prompt_logprobs
    assert [(o.token_ids, o.first_prompt_index) for o in scored] == [((), 17)]
    assert sorted(driver.sequences["a"].prompt_logprobs) == list(range(1, len(PROMPT)))


def test_a_cached_prompt_is_computed_again(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.generate([PROMPT], sampling=greedy())
    driver.add("a", PROMPT, sampling=greedy(num_prompt_logprobs=2))
    output = driver.run()["a"]
    check(output.prompt_logprobs, reference(tiny_model, PROMPT), PROMPT, 2)
    driver.add("b", PROMPT, sampling=greedy())
    assert driver.step().reserved[0].num_cached_tokens == 20


def test_no_token_is_generated_with_max_tokens_0(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, num_blocks=6)
    driver.add("a", PROMPT, sampling=greedy(0, num_prompt_logprobs=0, num_logprobs=0))
    output = driver.run()["a"]
    assert (output.token_ids, output.logprobs) == ([], [])
    assert output.finish_reason is FinishReason.LENGTH
    assert sorted(output.prompt_logprobs) == list(range(1, len(PROMPT)))
    assert driver.engine.num_free_blocks == 6


def test_a_prompt_of_one_token_has_none(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT[:1], sampling=greedy(num_prompt_logprobs=2))
    assert driver.run()["a"].prompt_logprobs == {}


def test_another_attempt_scores_the_prompt_and_goes_on(tiny_model: LoadedModel) -> None:
    tokens = greedy_tokens(tiny_model, PROMPT)
    driver = make_driver(tiny_model)
    sampling = greedy(num_prompt_logprobs=1)
    driver.add("a", PROMPT, sampling=sampling, output_token_ids=tuple(tokens[:4]))
    output = driver.run()["a"]
    check(output.prompt_logprobs, reference(tiny_model, PROMPT), PROMPT, 1)
    assert output.token_ids == tokens[4:]


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_random_schedules(tiny_model: LoadedModel, seed: int, is_overlapped: bool) -> None:
    rng = random.Random(seed)
    queue = ThreadQueue(seed) if is_overlapped else None
    config = EngineConfig(**{**CONFIG, "num_blocks": 16, "max_num_batched_tokens": 9})
    driver = EngineDriver(tiny_model, config, queue=queue)
    prompts = {str(i): [rng.randrange(256) for _ in range(rng.randint(1, 30))] for i in range(24)}
    nums = {name: rng.choice([None, 0, 4]) for name in prompts}
    for name, prompt in prompts.items():
        max_tokens = rng.randint(0 if nums[name] is not None else 1, 25)
        driver.add(name, prompt, sampling=greedy(max_tokens, num_prompt_logprobs=nums[name]))
    outputs: dict[str, Collected] = driver.run()
    if queue is not None:
        queue.close()
    assert driver.num_preempted, "the pool is too large to test anything"
    for name, prompt in prompts.items():
        num, found = nums[name], outputs[name].prompt_logprobs
        if num is None:
            assert not found
        else:
            check(found, reference(tiny_model, prompt), prompt, num)
    assert driver.engine.num_free_blocks == 16


@pytest.mark.parametrize("fields", [{"prefill_only": True}, {"kv_source": KvSource.IMPORT}])
def test_kv_from_elsewhere_has_no_logits(tiny_model: LoadedModel, fields: dict) -> None:
    driver = make_driver(tiny_model)
    with pytest.raises(InvalidSequenceError, match="num_prompt_logprobs is 1"):
        driver.add("a", PROMPT, sampling=greedy(num_prompt_logprobs=1), **fields)


def test_alternatives_do_not_depend_on_batch_neighbours(tiny_folder: Path) -> None:
    model = load_model(tiny_folder, EngineConfig(dtype="bfloat16", max_model_len=100))
    asked = greedy(num_logprobs=5, num_prompt_logprobs=5)
    for round_ in range(4):
        alone, together = (make_driver(model, dtype="bfloat16", num_blocks=64) for _ in range(2))
        prompt = random.Random(round_).choices(range(256), k=40)
        for driver in (alone, together):
            driver.add("a", prompt, sampling=asked)
        together.add("b", OTHER, sampling=greedy(num_logprobs=20, num_prompt_logprobs=20))
        found, wanted = together.run()["a"], alone.run()["a"]
        assert found.logprobs == wanted.logprobs
        assert found.prompt_logprobs == wanted.prompt_logprobs
