"""Completions that are the likeliest of several."""

import math
from typing import Any

import pytest
from support.running_gateway import Start
from support.scripted_worker import ScriptedWorker

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ASKED: dict[str, Any] = {
    "prompt": ["a", "b"], "seed": 5, "return_token_ids": True, "stop": ["e"],
}  # fmt: skip


def logprob_of(token_id: int) -> float:
    return -((token_id * 7) % 11) / 3


def mean_of(choice: dict[str, Any]) -> float:
    token_ids = choice["token_ids"]
    return math.fsum(map(logprob_of, token_ids)) / len(token_ids)


async def test_the_likeliest_are_returned_and_all_are_counted(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, logprob_of=logprob_of)) as running:
        every = (await running.completion(**ASKED, n=6)).json()
        answer = await running.completion(**ASKED, n=2, best_of=6)
        best = answer.json()
        receipt = await running.receipt(answer)
    assert len({len(choice["token_ids"]) for choice in every["choices"]}) > 1  # so a mean matters
    expected = []
    for first in (0, 6):
        of_prompt = sorted(every["choices"][first : first + 6], key=mean_of, reverse=True)
        assert mean_of(of_prompt[1]) > mean_of(of_prompt[2])
        expected += of_prompt[:2]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    for choice, wanted in zip(best["choices"], expected, strict=True):
        assert choice["text"] == wanted["text"]
        assert choice["token_ids"] == wanted["token_ids"]
        assert choice["finish_reason"] == wanted["finish_reason"]
        assert choice["logprobs"] is None
    assert best["usage"] == every["usage"]
    assert receipt["output_tokens"] == every["usage"]["completion_tokens"]


async def test_logprobs_are_those_of_the_likeliest(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, logprob_of=logprob_of)) as running:
        answer = (await running.completion(**ASKED, best_of=6, logprobs=1)).json()
    for choice in answer["choices"]:
        expected = [logprob_of(token_id) for token_id in choice["token_ids"]]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
async def test_every_token_counts_where_no_logprobs_are_asked_for(
    start: Start, bus: Any, seed: int
) -> None:
    asked = {
        "prompt": "a", "seed": seed, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    async with start(ScriptedWorker(bus, logprob_of=logprob_of)) as running:
        every = await running.completion(**asked, n=6)
        best = await running.completion(**asked, best_of=6)
    (chosen,) = best.json()["choices"]
    means = [mean_of(choice) for choice in every.json()["choices"]]  # some are equal
    assert mean_of(chosen) == pytest.approx(max(means)) != pytest.approx(min(means))


async def test_equally_likely_ones_keep_their_order(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus)) as running:
        every = (await running.completion(**ASKED, n=4)).json()["choices"]
        best = (await running.completion(**ASKED, n=3, best_of=4)).json()["choices"]
    assert [c["text"] for c in best] == [every[i]["text"] for i in (0, 1, 2, 4, 5, 6)]
