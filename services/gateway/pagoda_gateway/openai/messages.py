"""The `messages` field: OpenAI's messages to what a chat template sees, and on to token ids."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pagoda_gateway.errors import ContextLengthError
from pagoda_gateway.openai.schemas.contents import TEXT_FIELDS
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.tool_history import ToolHistory
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import ChatTokens, PromptMaker
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.templates.shape import TemplateShape

NO_EFFORT = "none"
INLINE_MESSAGES = 512  # more of them leave the event loop


async def conversation_tokens(
    prompts: PromptMaker,
    messages: Sequence[Message],
    model: ServedModel,
    *,
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    variables: dict[str, Any] | None,
    add_special_tokens: bool | None = None,
) -> ChatTokens:
    """Return the tokens of a conversation; None means a field's default.

    `add_generation_prompt` and `continue_final_message` exclude each other: see `checks`.

    Raises:
        ContextLengthError: there are more messages than the context has tokens.
        InvalidRequestError: the model's template cannot render it.
    """
    _check_number(len(messages), model)
    template = prompts.template.with_tools if tools else prompts.template
    continues = bool(continue_final_message)
    if len(messages) <= INLINE_MESSAGES:
        chat = _template_messages(messages, template)
    else:
        chat = await asyncio.to_thread(_template_messages, messages, template)
    return await prompts.chat_tokens(
        chat,
        model,
        tools=tools,
        add_generation_prompt=(
            not continues if add_generation_prompt is None else add_generation_prompt
        ),
        continue_final_message=continues,
        variables=variables,
        add_special_tokens=bool(add_special_tokens),
    )


def _check_number(num_messages: int, model: ServedModel) -> None:
    """Refuse what no template needs to render: all but empty messages take a token or more."""
    if num_messages > model.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens, and a "
            f"conversation can have as many messages; this one has {num_messages}. Leave some out.",
            param="messages",
            limit=model.max_model_len,
        )


def template_variables(
    sent: dict[str, Any] | None, documents: list[dict[str, Any]] | None, effort: str | None
) -> dict[str, Any] | None:
    """Return a chat template's variables: those that were sent as such come before fields."""
    variables: dict[str, Any] = {}
    if documents is not None:
        variables["documents"] = documents
    if effort is not None:
        variables["reasoning_effort"] = effort
    if effort == NO_EFFORT:
        variables["enable_thinking"] = False
    return {**variables, **sent} if sent else variables or None


def content_text(message: Message) -> str:
    """Return the text of a message that has been rendered."""
    return "\n".join(_content_texts(message))


def _template_messages(messages: Sequence[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    history = ToolHistory(template.shape)
    return [
        _template_message(f"messages[{index}]", message, template, history)
        for index, message in enumerate(messages)
    ]


def _template_message(
    where: str, message: Message, template: ChatTemplate, history: ToolHistory
) -> dict[str, Any]:
    """Return what the template sees of one message; errors name it `where`."""
    role: str = message.role
    if role == "developer" and not template.habits.knows_developer:
        role = "system"  # OpenAI's newer word for it
    if role == "function":
        role = "tool"  # as the call that it answers became one of a tool
    calls = history.calls(where, message)
    thought = message.reasoning_content or message.reasoning
    texts = _content_texts(message)
    seen: dict[str, Any] = {"role": role, "content": _content(texts, message, template.shape)}
    if calls:
        seen["tool_calls"] = calls
    is_either = template.habits.thinks_or_speaks and bool(calls) and any(texts)
    takes_thinking = template.shape.thinking and not is_either
    others = {
        "name": message.name,
        "tool_call_id": history.result_id(message),
        "reasoning_content": thought,
        "thinking": thought if takes_thinking else None,
    }
    return seen | {name: value for name, value in others.items() if value is not None}


def _content(texts: list[str], message: Message, shape: TemplateShape) -> Any:
    """Return content as the template reads it; parts as they were sent, if it can."""
    sent_parts = isinstance(message.content, list) and message.role == "user"
    if shape.content_parts and (sent_parts or not shape.content_text):
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _content_texts(message: Message) -> list[str]:
    """Return the text of each part; of plain text, one."""
    content = message.content
    if isinstance(content, str):
        return [content]
    if content is None:
        return [message.refusal or ""]
    return [part[TEXT_FIELDS[part["type"]]] for part in content]
