"""Logprobs of prompts, and tokens that must not come, through the whole system."""

from typing import Any

import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = "What news from the battle, good my lord?\n" * 4


def complete(stack: Stack, **fields: Any) -> Any:
    values = {"model": stack.model, "prompt": PROMPT, "temperature": 0, **fields}
    with stack.http() as http:
        answer = http.post("/v1/completions", json=values)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_scored_prompt_has_the_logprobs_that_generating_it_had(any_stack: Stack) -> None:
    said = complete(any_stack, max_tokens=24, logprobs=2, return_token_ids=True, ignore_eos=True)
    prompt = said["prompt_token_ids"] + said["token_ids"]
    scored = complete(any_stack, prompt=prompt, echo=True, logprobs=2, max_tokens=0)
    logprobs = scored["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(prompt)}
    assert scored["text"].endswith(said["text"])
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["tokens"][-24:] == said["logprobs"]["tokens"]
    assert logprobs["token_logprobs"][-24:] == pytest.approx(
        said["logprobs"]["token_logprobs"], abs=0.02
    )
    found = complete(any_stack, prompt=prompt, prompt_logprobs=0, max_tokens=1)["prompt_logprobs"]
    assert [e and list(e) for e in found] == [None, *([str(token_id)] for token_id in prompt[1:])]
    greedy = [next(iter(entry.values()))["rank"] for entry in found[-24:]]
    assert greedy.count(1) >= 23  # two tokens may be equally likely


def test_what_is_not_allowed_does_not_come(any_stack: Stack) -> None:
    free = complete(any_stack, max_tokens=40, return_token_ids=True)
    word = max(free["text"].split(), key=len)
    assert word not in complete(any_stack, max_tokens=40, bad_words=[word])["text"]
    allowed = sorted({*free["token_ids"]})[:3]
    answer = complete(
        any_stack, max_tokens=8, allowed_token_ids=allowed, return_token_ids=True, ignore_eos=True
    )
    assert {*answer["token_ids"]} <= {*allowed}


def test_the_best_of_five_are_the_likeliest_first(any_stack: Stack) -> None:
    answer = any_stack.openai().completions.create(
        model=any_stack.model, prompt=PROMPT, n=3, best_of=5, logprobs=0, max_tokens=8,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    sums = [sum(choice.logprobs.token_logprobs) for choice in answer.choices]
    assert sums == sorted(sums, reverse=True)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5 * 8
