"""Completions: every form of prompt, order, usage, logprobs."""

from typing import Any

import pytest
from support.running_gateway import Running

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize(
    ("prompt", "num_prompts"),
    [("hello", 1), ([69, 70], 1), (["a", "b"], 2), ([[69], [70, 71], [72]], 3)],
)
async def test_prompt_forms_and_order(running: Running, prompt: Any, num_prompts: int) -> None:
    answer = (await running.completion(prompt=prompt, n=2, return_token_ids=True)).json()
    choices = answer["choices"]
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in choices] == list(range(2 * num_prompts))
    prompts = [choice["prompt_token_ids"] for choice in choices]
    assert prompts[0::2] == prompts[1::2]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(len(ids) for ids in prompts[0::2])
    assert usage["completion_tokens"] == 8 * len(choices)


async def test_streamed_texts_equal_the_whole(running: Running) -> None:
    fields = {"prompt": ["a", "b"], "n": 2, "seed": 3, "max_tokens": 8}
    whole = (await running.completion(**fields)).json()
    chunks = await running.events("/v1/completions", **fields)
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


async def test_prompt_samples_alike_in_a_batch_and_alone(running: Running) -> None:
    alone = (await running.completion(prompt="b", seed=3)).json()["choices"][0]["text"]
    batch = (await running.completion(prompt=["a", "b"], seed=3)).json()["choices"]
    assert batch[1]["text"] == alone


async def test_sixteen_tokens_by_default(running: Running) -> None:
    answer = (await running.completion(max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 16


async def test_text_prompts_begin_with_bos(running: Running) -> None:
    await running.completion()
    assert running.worker.requests[-1].prompt_token_ids[0] == 0
    await running.completion(add_special_tokens=False)
    assert running.worker.requests[-1].prompt_token_ids[0] != 0


async def test_echo_repeats_the_prompt(running: Running) -> None:
    fields = {"prompt": ["ab", "cd"], "echo": True, "max_tokens": 3}
    whole = (await running.completion(**fields)).json()["choices"]
    assert [choice["text"][:2] for choice in whole] == ["ab", "cd"]
    assert all(len(choice["text"]) == 5 for choice in whole)
    chunks = await running.events("/v1/completions", **fields)
    first = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == 1]
    assert "".join(first).startswith("cd")


@pytest.mark.parametrize("num_top", [0, 5])
async def test_logprobs(running: Running, num_top: int) -> None:
    logprobs = (await running.completion(logprobs=num_top)).json()["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {8}
    assert logprobs["text_offset"] == list(range(8))
    assert all(max(1, num_top) <= len(top) <= num_top + 1 for top in logprobs["top_logprobs"])
