"""Prompts of a completion: what is accepted, what is refused."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.completion_prompts import completion_prompts
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker


async def prompts(
    maker: PromptMaker, model: ServedModel, prompt: Any
) -> list[tuple[list[int], str | None]]:
    return await completion_prompts(
        maker, prompt, model, max_prompts=8, add_special_tokens=True, needs_text=True
    )


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
    "prompt",
    [None, "", [], [""], [[]], 5, [1.5], [True], [[-1]], [267], {"a": 1}, [["a"]], ["a", None]],
)
async def test_bad_prompt_is_refused(maker: PromptMaker, model: ServedModel, prompt: Any) -> None:
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
    monkeypatch.setattr(maker, "_tokenizer", None if "8" in named else maker._tokenizer)
    with pytest.raises(InvalidRequestError, match=named) as caught:
        await prompts(maker, model, prompt)
    assert caught.value.param == "prompt"
