"""Messages: what is accepted, what is named when it is not."""

from typing import Any

import pytest
from pydantic import ValidationError

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.messages import conversation_tokens
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer

MODEL = ServedModel(
    name="tiny",
    kv_identity=bytes(16),
    block_size=16,
    max_model_len=100,
    vocab_size=267,
    embedding_size=4,
    created_unix_seconds=0,
)


async def chat(maker: PromptMaker, *messages: dict[str, Any], **options: Any) -> list[int]:
    values: dict[str, Any] = {
        "tools": None, "add_generation_prompt": True, "continue_final_message": False,
        "variables": None, **options,
    }  # fmt: skip
    found = [Message.model_validate(message) for message in messages]
    tokens = await conversation_tokens(maker, found, MODEL, **values)
    return tokens.token_ids


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
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "tool_calls": None, "refusal": ""},
    ],
)
def test_a_message_that_says_nothing_is_refused_beside_its_other_fields(
    message: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError) as caught:
        Message.model_validate({**message, "name": 5})
    assert [error["loc"] for error in caught.value.errors()] == [("name",), ("content",)]


@pytest.mark.parametrize(
    "said",
    [
        {"content": ""},
        {"content": None},
        {"tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]},
        {"function_call": {"name": "look", "arguments": "{}"}},
        {"refusal": "no"},
        {"reasoning_content": "hm"},
    ],
)
async def test_an_answer_may_say_no_text(maker: PromptMaker, said: dict[str, Any]) -> None:
    assert await chat(maker, {"role": "user", "content": "x"}, {"role": "assistant", **said})


async def test_model_without_template_says_so(tokenizer: ModelTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="completions"):
        await chat(PromptMaker(tokenizer, None), {"role": "user", "content": "x"})


async def test_documents_reach_the_template(tokenizer: ModelTokenizer) -> None:
    template = "{% for document in documents or [] %}<{{ document.text }}>{% endfor %}"
    maker = PromptMaker(tokenizer, ChatTemplate(template, {}))
    message = {"role": "user", "content": "x"}
    documents = [{"title": "a", "text": "one"}, {"text": "two"}]
    ids = await chat(maker, message, variables={"documents": documents})
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<one><two>"
    assert await chat(maker, message) == []
