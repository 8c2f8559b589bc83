"""Prompts of a completion: what is accepted, what is refused."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.completion_prompts import completion_prompts
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker
from pagoda_gateway.text.tokenizer import ModelTokenizer


async def prompts(
    maker: PromptMaker, tokenizer: ModelTokenizer, model: ServedModel, prompt: Any
) -> list[tuple[list[int], str | None]]:
    return await completion_prompts(
        maker, tokenizer, prompt, model, add_special_tokens=True, needs_text=True
    )


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), ([5, 6], 1), (["a", "b"], 2), ([[5, 6], [7]], 2), (["a", [5]], 2)],
)
async def test_prompt_forms(
    maker: PromptMaker, tokenizer: ModelTokenizer, model: ServedModel, prompt: Any, count: int
) -> None:
    found = await prompts(maker, tokenizer, model, prompt)
    assert len(found) == count
    assert all(ids and text is not None for ids, text in found)


async def test_token_ids_are_taken_as_they_are(
    maker: PromptMaker, tokenizer: ModelTokenizer, model: ServedModel
) -> None:
    assert (await prompts(maker, tokenizer, model, [[9, 8]]))[0][0] == [9, 8]


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [""], [[]], 5, [1.5], [True], [[-1]], [267], {"a": 1}, [["a"]], ["a", None]],
)
async def test_bad_prompt_is_refused(
    maker: PromptMaker, tokenizer: ModelTokenizer, model: ServedModel, prompt: Any
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await prompts(maker, tokenizer, model, prompt)
    assert caught.value.param == "prompt"
