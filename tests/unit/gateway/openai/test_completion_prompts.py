"""Prompts of a completion: what is accepted, what is refused."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.completion_prompts import completion_prompts
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker


async def prompts(
    maker: PromptMaker, model: ServedModel, prompt: Any, **fields: Any
) -> list[tuple[list[int], str | None]]:
    found, cut = await made(maker, model, prompt, **fields)
    assert all(ids in [kept for kept, _ in found] for ids in cut)
    return found


async def made(
    maker: PromptMaker, model: ServedModel, prompt: Any, **fields: Any
) -> tuple[list[tuple[list[int], str | None]], list[list[int]]]:
    values = {"model": "tiny", "prompt": prompt, "echo": True, **fields}
    body = CompletionBody.model_validate(values)
    return await completion_prompts(maker, body, model, max_prompts=8, default_max_tokens=16)


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), ([5, 6], 1), (["a", "b"], 2), ([[5, 6], [7]], 2), (["a", [5]], 2)],
)
async def test_prompt_forms(
    maker: PromptMaker, model: ServedModel, prompt: Any, count: int
) -> None:
    found = await prompts(maker, model, prompt)
    assert len(found) == count
    assert all(ids and text is not None for ids, text in found)


async def test_token_ids_are_taken_as_they_are(maker: PromptMaker, model: ServedModel) -> None:
    assert (await prompts(maker, model, [[9, 8]]))[0][0] == [9, 8]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
        ({"truncate_prompt_tokens": 9, "truncation_side": "left"}, "abcdef"),
    ],
)
async def test_prompts_are_cut_on_the_side_that_is_asked_for(
    maker: PromptMaker, model: ServedModel, fields: dict[str, Any], kept: str
) -> None:
    for prompt in ("abcdef", [69, 70, 71, 72, 73, 74]):
        ((ids, text),) = await prompts(maker, model, prompt, add_special_tokens=False, **fields)
        assert text == kept
        assert ids == [69 + ord(c) - ord("a") for c in kept]


async def test_it_says_which_prompts_were_cut(maker: PromptMaker, model: ServedModel) -> None:
    sent = [[5, 6], [7, 8, 9]]
    assert (await made(maker, model, sent, truncate_prompt_tokens=2))[1] == [[8, 9]]
    assert (await made(maker, model, sent))[1] == []


@pytest.mark.parametrize(("max_tokens", "num_kept"), [(None, 84), (30, 70), (0, 99), (200, 1)])
async def test_minus_one_keeps_what_fits(
    maker: PromptMaker, model: ServedModel, max_tokens: int | None, num_kept: int
) -> None:
    fields = {
        "truncate_prompt_tokens": -1, "max_tokens": max_tokens, "echo": False, "prompt_logprobs": 0
    }  # fmt: skip
    for prompt in ([69] * 500, "a" * 500):
        ((ids, _),) = await prompts(maker, model, prompt, **fields)
        assert len(ids) == num_kept


@pytest.mark.parametrize("prompt", [[[-1]], [267]])
async def test_ids_outside_the_vocabulary_are_refused(
    maker: PromptMaker, model: ServedModel, prompt: Any
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await prompts(maker, model, prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "named"),
    [(["a"] * 9, "8"), ([[0]] * 9, "8"), ([0] * 100, "100"), (["x" * 10**6], "characters")],
)
async def test_what_cannot_fit_is_refused_before_it_is_tokenised(
    maker: PromptMaker,
    model: ServedModel,
    monkeypatch: pytest.MonkeyPatch,
    prompt: Any,
    named: str,
) -> None:
    monkeypatch.setattr(maker, "tokenizer", None if "8" in named else maker.tokenizer)
    with pytest.raises(InvalidRequestError, match=named) as caught:
        await prompts(maker, model, prompt)
    assert caught.value.param == "prompt"
