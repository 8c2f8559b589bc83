"""Body of POST /v1/chat/completions."""

from typing import Any

from pydantic import Field

from pagoda_gateway.openai.schemas.base import MAX_MESSAGES, Items, ToolChoice, Tools
from pagoda_gateway.openai.schemas.generation import MAX_LOGPROBS, GenerationBody
from pagoda_gateway.openai.schemas.messages import Message


class ChatBody(GenerationBody):
    """A conversation to go on with."""

    messages: Items[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
