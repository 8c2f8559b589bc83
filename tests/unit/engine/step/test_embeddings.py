"""The embedding of a prompt equals one forward of the whole prompt, whatever the schedule."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.engine_driver import Collected, EngineDriver
from support.thread_queue import ThreadQueue
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import (
    EngineConfig,
    FinishReason,
    InvalidSequenceError,
    KvSource,
    LoadedModel,
)
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_kernels import plan_attention

CPU = torch.device("cpu")
EMBED = greedy(0, embed=True)
MAX_ERROR = 1e-5


def reference(model: LoadedModel, prompt: Sequence[int]) -> np.ndarray:
    """Return ``[hidden]``, from a single forward."""
    shape, num = model.description, len(prompt)
    layout = shape.kv_layout(num, model.dtype)
    plan = plan_attention(
        seqlens_q=[num], context_lens=[num], block_tables=[[0]], block_size=num, device=CPU
    )
    with torch.inference_mode():
        hidden = model.decoder.hidden(
            torch.tensor(prompt), torch.arange(num), plan, KvCache(layout, 1, CPU), None
        )
    return F.normalize(hidden[-1], dim=-1).numpy()


def check(output: Collected, model: LoadedModel, prompt: Sequence[int]) -> None:
    found = np.frombuffer(output.embedding, "<f4")
    np.testing.assert_allclose(found, reference(model, prompt), atol=MAX_ERROR, rtol=0)
    assert (output.token_ids, output.finish_reason) == ([], FinishReason.STOP)
    assert output.matched_stop_token_id is None


@pytest.mark.parametrize("budget", [5, 512])
def test_in_one_batch_with_what_generates(tiny_model: LoadedModel, budget: int) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=budget, max_num_seqs=4)
    driver.add("a", PROMPT, sampling=greedy())
    driver.add("b", OTHER, sampling=EMBED)
    driver.add("c", PROMPT[::-1], sampling=EMBED)
    driver.add("d", PROMPT[::-1], sampling=greedy(0, num_prompt_logprobs=1))
    outputs = driver.run()
    check(outputs["b"], tiny_model, OTHER)
    check(outputs["c"], tiny_model, PROMPT[::-1])
    assert outputs["a"].token_ids == greedy_tokens(tiny_model, PROMPT)
    assert len(outputs["d"].prompt_logprobs) == len(PROMPT) - 1
    assert not outputs["a"].embedding + outputs["d"].embedding


def test_of_one_token(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT[:1], sampling=EMBED)
    check(driver.run()["a"], tiny_model, PROMPT[:1])


def test_of_a_cached_prompt(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    prompt = PROMPT[:20]  # whole blocks: all but the last one are reused
    driver.generate([prompt], sampling=greedy())
    driver.add("a", prompt, sampling=EMBED)
    assert driver.step().reserved[0].num_cached_tokens == 16
    check(driver.run()["a"], tiny_model, prompt)


def test_of_a_prompt_that_is_preempted(tiny_model: LoadedModel) -> None:
    prompt = [*PROMPT, *OTHER, *PROMPT][:40]
    driver = make_driver(tiny_model, num_blocks=14, max_num_batched_tokens=3)
    driver.add("a", PROMPT[:4], sampling=greedy(25))
    driver.add("b", prompt, sampling=EMBED)
    outputs = driver.run()
    assert driver.num_preempted == 1
    assert driver.engine.num_free_blocks == 14
    check(outputs["b"], tiny_model, prompt)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_random_schedules(tiny_model: LoadedModel, seed: int, is_overlapped: bool) -> None:
    rng = random.Random(seed)
    queue = ThreadQueue(seed) if is_overlapped else None
    config = EngineConfig(block_size=4, num_blocks=16, max_model_len=100, max_num_batched_tokens=9)
    driver = EngineDriver(tiny_model, config, queue=queue)
    prompts = {str(i): [rng.randrange(256) for _ in range(rng.randint(1, 30))] for i in range(24)}
    embedded = {name for name in prompts if int(name) % 3 == 2}
    for name, prompt in prompts.items():
        driver.add(name, prompt, sampling=EMBED if name in embedded else greedy(25))
    outputs = driver.run()
    if queue is not None:
        queue.close()
    assert driver.num_preempted, "the pool is too large to test anything"
    for name, prompt in prompts.items():
        if name in embedded:
            check(outputs[name], tiny_model, prompt)
        else:
            assert not outputs[name].embedding
    assert driver.engine.num_free_blocks == 16


@pytest.mark.parametrize("fields", [{"prefill_only": True}, {"kv_source": KvSource.IMPORT}])
def test_kv_from_elsewhere_has_no_hidden_states(tiny_model: LoadedModel, fields: dict) -> None:
    with pytest.raises(InvalidSequenceError, match="embed is True"):
        make_driver(tiny_model).add("a", PROMPT, sampling=EMBED, **fields)


def test_there_are_no_tokens_beside_it(tiny_model: LoadedModel) -> None:
    with pytest.raises(InvalidSequenceError, match="embed is True"):
        make_driver(tiny_model).add("a", PROMPT, sampling=replace(EMBED, max_tokens=1))
