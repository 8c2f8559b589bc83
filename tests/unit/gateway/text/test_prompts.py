"""Messages and prompts: what is accepted, what is named when it is not."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.chat import Message
from pagoda_gateway.sequences.catalog import ServedModel
from pagoda_gateway.text.chat_template import ChatTemplate
from pagoda_gateway.text.prompts import PromptMaker, cache_salt, completion_prompts
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash


@pytest.fixture
def maker(tokenizer: ModelTokenizer, model_folder: Any) -> PromptMaker:
    return PromptMaker(tokenizer, ChatTemplate.load(model_folder, tokenizer.special_tokens))


async def chat(maker: PromptMaker, *messages: dict[str, Any], **options: Any) -> list[int]:
    values: dict[str, Any] = {
        "tools": None, "add_generation_prompt": True, "continue_final_message": False,
        "variables": None, **options,
    }  # fmt: skip
    return await maker.chat_tokens([Message.model_validate(m) for m in messages], **values)


async def test_text_parts_equal_the_string(maker: PromptMaker) -> None:
    parts = [{"type": "text", "text": "hello"}]
    assert await chat(maker, {"role": "user", "content": parts}) == await chat(
        maker, {"role": "user", "content": "hello"}
    )


async def test_developer_means_system(maker: PromptMaker) -> None:
    assert await chat(maker, {"role": "developer", "content": "x"}) == await chat(
        maker, {"role": "system", "content": "x"}
    )


async def test_tool_history_enters_the_prompt(
    maker: PromptMaker, tokenizer: ModelTokenizer
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ids = await chat(
        maker,
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
    )
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert '"name": "look"' in text
    assert "found" in text


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "poet", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
    ],
)
async def test_bad_message_is_named(
    maker: PromptMaker, message: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await chat(maker, message)
    assert caught.value.param == param


async def test_model_without_template_says_so(tokenizer: ModelTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="completions"):
        await chat(PromptMaker(tokenizer, None), {"role": "user", "content": "x"})


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


async def test_tenants_never_share_blocks(maker: PromptMaker, model: ServedModel) -> None:
    ids = list(range(5, 40))
    first = await maker.finish(ids, None, model, "a")
    second = await maker.finish(ids, None, model, "b")
    again = await maker.finish(ids, None, model, "a")
    assert len(first.block_hashes) == 2
    assert not set(first.block_hashes) & set(second.block_hashes)
    assert first == again
    root = block_hash.cache_root(kv_identity=model.kv_identity, cache_salt=cache_salt("a"))
    assert first.block_hashes == block_hash.hash_prompt(root, ids, 16)


async def test_long_texts_leave_the_event_loop(
    maker: PromptMaker, tokenizer: ModelTokenizer
) -> None:
    text = "hello world " * 2000
    ids = await maker.text_tokens(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
