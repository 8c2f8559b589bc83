"""Body of POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas import checks
from pagoda_gateway.openai.schemas.base import (
    MAX_MESSAGES,
    Items,
    Modalities,
    Refused,
    RefusedFunctions,
    TemplateVariables,
    ToolChoice,
    Tools,
)
from pagoda_gateway.openai.schemas.generation import MAX_LOGPROBS, GenerationBody
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.schemas.tools import checked_choice, checked_tools

MAX_DOCUMENTS = 1024
MAX_THINKING_TOKENS = 1 << 20


class ChatBody(GenerationBody):
    """A conversation to go on with.

    Attributes:
        thinking_budget_field: name of the field that bounds the reasoning.
    """

    prompt_field: ClassVar[str] = "messages"
    thinking_budget_field: ClassVar[str] = "thinking_token_budget"

    messages: Items[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MAX_THINKING_TOKENS)
    chat_template_kwargs: TemplateVariables | None = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)
    # OpenAI's former tools; known, and refused when set.
    functions: RefusedFunctions = None
    function_call: RefusedFunctions = None
    # Known, and refused when set: other media, a search, a template of the client's own.
    modalities: Modalities = None
    audio: Refused = None
    web_search_options: Refused = None
    chat_template: Refused = None

    @property
    def max_tokens_field(self) -> str:
        """Name of the field that bounds the output."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def tool_places(self) -> Sequence[str]:
        """Where the tools are, for errors; empty: in `tools`, one after the other."""
        return ()

    @property
    def drops_turns(self) -> bool:
        """Whether a conversation that is too long goes without its oldest turns."""
        return False

    @field_validator("max_completion_tokens")
    @classmethod
    def _check_max_completion_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        checks.check_min_tokens(info.data.get("min_tokens"), value, "max_completion_tokens")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _check_top_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("logprobs", True):  # not there: wrong itself
            return value
        if value:
            raise InvalidRequestError("'top_logprobs' needs logprobs: true", param="top_logprobs")
        return None

    _check_tools = field_validator("tools")(checked_tools)
    _check_tool_choice = field_validator("tool_choice")(checked_choice)
    _check_continuation = field_validator("continue_final_message")(checks.checked_continuation)

    @field_validator("modalities")
    @classmethod
    def _check_modalities(cls, value: Any) -> Any:
        checks.refuse("modalities", value if value != ["text"] else None, hint=' but ["text"]')
        return value
