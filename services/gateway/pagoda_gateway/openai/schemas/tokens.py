"""Bodies and answers of POST /tokenize and /detokenize (vLLM's extensions)."""

from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas import checks
from pagoda_gateway.openai.schemas.base import (
    MAX_MESSAGES,
    Items,
    RequestBody,
    TemplateVariables,
    ToolChoice,
    Tools,
)
from pagoda_gateway.openai.schemas.chat import MAX_DOCUMENTS
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.schemas.tools import checked_choice, checked_tools


class TokenizeBody(RequestBody):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Items[Message] | None = Field(
        None, min_length=1, max_length=MAX_MESSAGES, validate_default=True
    )
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None  # "none": the model is told of no tools
    chat_template_kwargs: TemplateVariables | None = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)
    reasoning_effort: str | None = None

    @field_validator("messages")
    @classmethod
    def _check_source(
        cls, value: list[Message] | None, info: ValidationInfo
    ) -> list[Message] | None:
        if "prompt" in info.data and (info.data["prompt"] is None) == (value is None):
            raise InvalidRequestError("give either 'prompt' or 'messages'", param="prompt")
        return value

    _check_continuation = field_validator("continue_final_message")(checks.checked_continuation)
    _check_tools = field_validator("tools")(checked_tools)
    _check_tool_choice = field_validator("tool_choice")(checked_choice)


class DetokenizeBody(RequestBody):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: Items[int] = Field(max_length=1_000_000)


class TokenizeAnswer(BaseModel):
    """The answer to a TokenizeBody; only the OpenAPI document uses this."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(BaseModel):
    """The answer to a DetokenizeBody; only the OpenAPI document uses this."""

    prompt: str
