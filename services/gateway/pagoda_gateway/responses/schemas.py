"""Bodies of /v1/responses and /v1/conversations: fields, types, ranges."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pagoda_gateway.errors import InvalidRequestError, Problems, shorten
from pagoda_gateway.openai.schemas import checks, formats
from pagoda_gateway.openai.schemas.base import (
    MAX_TOOLS,
    NOTHING,
    Content,
    Items,
    LogitBias,
    Metadata,
    Priority,
    RequestBody,
    RequestModel,
    Seed,
    Stops,
    TemplateVariables,
    ToolChoice,
)
from pagoda_gateway.openai.schemas.chat import MAX_THINKING_TOKENS
from pagoda_gateway.openai.schemas.generation import (
    MAX_CACHE_SALT_CHARS,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    StreamOptions,
)
from pagoda_gateway.openai.schemas.tools import (
    check_choice_among,
    check_names,
    is_choice,
    names_in,
)
from pagoda_gateway.responses.chat_messages import check_item, input_items
from pagoda_gateway.responses.tools import (
    FunctionTool,
    OfferedTool,
    chat_choice,
    check_known_names,
    functions,
)

MAX_NEW_ITEMS = 20
TOOL_CHOICES = (
    'none, auto, required, {"type": "function" or "custom", "name": ...} or {"type": '
    '"allowed_tools", "mode": "auto" or "required", "tools": [{"type": "function", "name": ...}, '
    "...]}"
)
LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
AS_IN_CHAT = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "min_tokens", "skip_special_tokens", "structured_outputs",
    "thinking_token_budget", "chat_template_kwargs", "parallel_tool_calls", "cache_salt",
    "metadata", "priority", "user",
)  # fmt: skip
"""Fields that mean what they mean in chat."""

_SUMMARIES = "auto, concise or detailed"
_REASONING = {
    "effort": "low, medium or high", "summary": _SUMMARIES, "generate_summary": _SUMMARIES,
}  # fmt: skip


ConversationName = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["string", "null"]},
                {
                    "type": "object",
                    "properties": {"id": {"type": "string"}},
                    "required": ["id"],
                },
            ]
        }
    ),
]


def _checked_item(item: dict[str, Any]) -> dict[str, Any]:
    check_item("", item)
    return item


NewItem = Annotated[dict[str, Any], AfterValidator(_checked_item)]
NewItems = Annotated[Items[NewItem], Field(max_length=MAX_NEW_ITEMS)]


class TextFormat(RequestModel):
    """What the text of the answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    description: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "TextFormat":
        if self.type == "json_schema" and self.schema_ is None:
            raise InvalidRequestError(
                "'text.format.schema': type json_schema needs it", param="text.format.schema"
            )
        return self


class TextOptions(RequestModel):
    """The form of the answer's text; `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesBody(RequestBody):
    """Items to answer."""

    model: str = Field(min_length=1, max_length=512)
    input: Content
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationName = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    # As vLLM has them here, beyond OpenAI's.
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Seed = None
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: LogitBias | None = None
    stop: Stops = None
    stop_token_ids: Items[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0)
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MAX_THINKING_TOKENS)
    chat_template_kwargs: TemplateVariables | None = None
    tools: Items[OfferedTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    priority: Priority = None
    user: str | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    stream_options: StreamOptions | None = None
    reasoning: dict[str, Any] | None = None  # of which `effort` and `summary` count
    # Known, and without effect here.
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    background: bool | None = None
    include: Items[str] | None = None  # of which LOGPROBS and SEALED count
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    # Known, and refused when they would change the answer.
    prompt: Annotated[Any, NOTHING] = None
    moderation: Annotated[Any, NOTHING] = None

    @property
    def conversation_id(self) -> str | None:
        """Of the conversation to go on with; None: there is none."""
        sent = self.conversation
        return (sent["id"] if isinstance(sent, dict) else sent) or None

    @property
    def reasoning_summary(self) -> str | None:
        """What the client calls the summary that it wants of reasoning; None: it wants none."""
        asked = self.reasoning or {}
        return asked.get("summary") or asked.get("generate_summary") or None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives for each token of the text; None: no log probabilities are wanted."""
        is_included = LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if is_included or self.top_logprobs else None

    @field_validator("input")
    @classmethod
    def _check_input(cls, value: Any) -> Any:
        return input_items(value)

    @field_validator("conversation")
    @classmethod
    def _check_conversation(cls, value: Any, info: ValidationInfo) -> Any:
        name = value.get("id") if isinstance(value, dict) else value
        if not isinstance(name, str | None) or (isinstance(value, dict) and not name):
            raise InvalidRequestError(
                f"'conversation' is {shorten(value)}; it must be an id or an object with an 'id'",
                param="conversation",
            )
        if name and info.data.get("previous_response_id"):
            raise InvalidRequestError(
                "'conversation' and 'previous_response_id' both say what came before; send one",
                param="conversation",
            )
        return value

    @field_validator("min_tokens")
    @classmethod
    def _check_min_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        field = "max_output_tokens"
        checks.check_min_tokens(value, info.data.get(field), field)
        return value

    @field_validator("structured_outputs")
    @classmethod
    def _check_structured_outputs(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        formats.wanted("structured_outputs", value)
        return value

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, value: list[OfferedTool] | None) -> list[OfferedTool] | None:
        check_known_names(value)
        return value

    @classmethod
    def check_together(cls, field: str, items: list[Any]) -> None:
        """Check that tools have names of their own."""
        if field == "tools":
            kinds = FunctionTool.kinds
            own = [t if isinstance(t, dict) and t.get("type") in kinds else {} for t in items]
            check_names(names_in(own))

    @field_validator("tool_choice")
    @classmethod
    def _check_tool_choice(cls, value: Any, info: ValidationInfo) -> Any:
        tools = info.data.get("tools")
        choice = chat_choice(value, tools)
        if not is_choice(choice):
            raise InvalidRequestError(
                f"'tool_choice' must be {TOOL_CHOICES}, not {shorten(value)}", param="tool_choice"
            )
        if "tools" in info.data:  # not there: wrong themselves
            check_choice_among({function.name for function in functions(tools)}, choice)
        return value

    @field_validator("reasoning")
    @classmethod
    def _check_reasoning(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        problems = Problems()
        for name, known in _REASONING.items():
            with problems:
                said = (value or {}).get(name)
                if not isinstance(said, str | None):
                    raise InvalidRequestError(
                        f"'reasoning.{name}' is {shorten(said)}; it must be text such as {known}",
                        param=f"reasoning.{name}",
                    )
        problems.raise_all()
        return value

    @field_validator("background")
    @classmethod
    def _check_background(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("store") is False:
            raise InvalidRequestError(
                "'background' is true and 'store' false: nobody could find the response",
                param="background",
            )
        return value

    @field_validator("prompt", "moderation")
    @classmethod
    def _refuse(cls, value: Any, info: ValidationInfo) -> Any:
        checks.refuse(info.field_name or "", value or None)
        return value


class ConversationUpdate(RequestBody):
    """What is put in place of a conversation's metadata."""

    metadata: Metadata | None = None


class ConversationBody(ConversationUpdate):
    """A new conversation."""

    items: NewItems | None = None


class NewItemsBody(RequestBody):
    """What is added to a conversation."""

    items: NewItems = Field(min_length=1)
