"""Body of POST /v1/chat/completions."""

from typing import Any

from pydantic import Field

from pagoda_gateway.openai.schemas.base import ToolChoice
from pagoda_gateway.openai.schemas.generation import MAX_LOGPROBS, GenerationBody
from pagoda_gateway.openai.schemas.messages import Message


class ChatBody(GenerationBody):
    """A conversation to go on with."""

    messages: list[Message] = Field(min_length=1, max_length=100_000)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
