"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's way to ask for a chat."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pagoda_gateway.anthropic.conversation import chat_messages
from pagoda_gateway.anthropic.schemas import (
    ClientTool,
    CountTokensBody,
    MessagesBody,
    Thinking,
)
from pagoda_gateway.anthropic.serializer import MessageSerializer
from pagoda_gateway.openai.chat import ChatProcessor
from pagoda_gateway.openai.endpoint import Endpoint, Translated
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.tools import function_tool
from pagoda_gateway.served_model import ServedModel


class _Chat(ChatBody):
    schema_field: ClassVar[str] = "output_config.format.schema"
    thinking_budget_field: ClassVar[str] = "thinking.budget_tokens"


class MessagesEndpoint(Endpoint[MessagesBody, ChatBody]):
    """Messages in front of chat."""

    name = "messages"
    operation = "chat"
    object_id_prefix = "msg_"
    schema = MessagesBody

    def __init__(self, chats: Mapping[str, ChatProcessor]) -> None:
        super().__init__(chats)
        self._chats = chats

    async def translate(
        self, sent: MessagesBody, _tenant: str, _line_id: str = ""
    ) -> Translated[ChatBody]:
        """Return the chat that the body asks for."""
        body = _Chat.model_construct(
            **_conversation(sent),
            max_tokens=sent.max_tokens,
            stream=sent.stream,
            stream_options=sent.stream_options,
            temperature=sent.temperature,
            top_p=sent.top_p,
            top_k=sent.top_k,
            seed=sent.seed,
            stop=sent.stop_sequences,
            cache_salt=sent.cache_salt,
            user=sent.metadata.user_id if sent.metadata else None,
        )
        return Translated(
            body, lambda processed, generation: MessageSerializer(generation, processed.form)
        )

    async def count_tokens(self, sent: CountTokensBody, model: ServedModel) -> int:
        """Return how many tokens the conversation's prompt has.

        Raises:
            InvalidRequestError: the model's template cannot render it.
        """
        body = ChatBody.model_construct(**_conversation(sent))
        return len((await self._chats[model.name].conversation(body, model)).token_ids)


def _conversation(sent: CountTokensBody) -> dict[str, Any]:
    """Return the fields of a chat's body that its prompt and its grammar depend on."""
    messages = chat_messages(sent.system, sent.messages)
    last = messages[-1]
    choice, config, thinking = sent.tool_choice, sent.output_config, sent.thinking
    form = (config and config.format) or sent.output_format
    is_begun = last.role == "assistant" and not last.tool_calls  # the answer, by the client
    return {
        "model": sent.model,
        "messages": messages,
        "continue_final_message": is_begun,
        "tools": [_function(tool) for tool in sent.tools] if sent.tools else None,
        "tool_choice": choice and choice.in_chat,
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "response_format": form
        and {"type": "json_schema", "json_schema": {"schema": form.schema_}},
        "chat_template_kwargs": _thinks(thinking),
        "thinking_token_budget": thinking.budget_tokens if thinking else None,
        "include_reasoning": False if thinking and thinking.display == "omitted" else None,
        "reasoning_effort": config.effort if config else None,
    }


def _thinks(thinking: Thinking | None) -> dict[str, Any] | None:
    """Return the template's variable that says whether the model thinks; None: as it does."""
    match thinking and thinking.type:
        case "enabled":
            return {"enable_thinking": True}
        case "disabled":
            return {"enable_thinking": False}
    return None


def _function(tool: ClientTool) -> dict[str, Any]:
    return function_tool(
        tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
