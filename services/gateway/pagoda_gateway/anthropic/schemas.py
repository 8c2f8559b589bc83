"""Bodies of Anthropic's API: fields, types, ranges."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pagoda_gateway.errors import (
    InvalidRequestError,
    ThreadError,
    UnsupportedFieldError,
    shorten,
)
from pagoda_gateway.openai.schemas import checks
from pagoda_gateway.openai.schemas.base import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Content,
    Items,
    Refused,
    RequestBody,
    RequestModel,
    Seed,
)
from pagoda_gateway.openai.schemas.chat import MAX_THINKING_TOKENS
from pagoda_gateway.openai.schemas.contents import check_content
from pagoda_gateway.openai.schemas.generation import MAX_CACHE_SALT_CHARS, StreamOptions
from pagoda_gateway.openai.schemas.tools import (
    MAX_NAME_CHARS,
    check_choice_among,
    check_names,
    names_in,
)

MAX_STOP_SEQUENCES = 16
StopSequence = Annotated[str, Field(min_length=1, max_length=checks.MAX_STOP_STRING_CHARS)]


def _check_text(place: str, block: Any) -> None:
    match block:
        case {"type": "text", "text": str()}:
            return
    kind = block.get("type") if isinstance(block, dict) else None
    raise InvalidRequestError(
        f"has type {shorten(kind)} or lacks a field of it; this model takes blocks of type text "
        "and, from an assistant, tool_use (id, name, input) and thinking, from a user, "
        "tool_result (tool_use_id, content: text, or tool_reference (tool_name))",
        param=place,
    )


def _check_result(place: str, block: Any) -> None:
    match block:
        case {"type": "tool_reference", "tool_name": str(name)} if name:
            pass  # what a client that searches its own tools has found
        case _:
            _check_text(place, block)


def _check_users(place: str, block: Any) -> None:
    match block:
        case {"type": "tool_result", "tool_use_id": str()}:
            result = block.get("content") or ""
            check_content(f"{place}.content", result, _check_result, parts="blocks")
        case _:
            _check_text(place, block)


def _check_assistants(place: str, block: Any) -> None:
    match block:
        case {"type": "tool_use", "id": str(), "name": str(name), "input": dict()} if name:
            pass
        case {"type": "thinking", "thinking": str()} | {"type": "redacted_thinking"}:
            pass
        case _:
            _check_text(place, block)


def _checked_texts(content: Any) -> Any:
    check_content("", content, _check_text, parts="blocks")
    return content


_CHECKS = {"user": _check_users, "assistant": _check_assistants, "system": _check_text}
Texts = Annotated[Content, AfterValidator(_checked_texts)]
Unthreaded = Annotated[Any, WithJsonSchema({"enum": [None]})]


class Turn(RequestModel):
    """One message; its content is text or blocks."""

    role: Literal["user", "assistant", "system"]
    content: Content

    @field_validator("content")
    @classmethod
    def _check_content(cls, value: Any, info: ValidationInfo) -> Any:
        if "role" in info.data:  # not there: wrong itself
            check_content("", value, _CHECKS[info.data["role"]], parts="blocks")
        return value


class ClientTool(RequestModel):
    """A tool that the client runs."""

    type: str | None = None
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":  # its other fields are not ours to check
            raise UnsupportedFieldError(
                f"has type {shorten(kind)}; it must be 'custom' or missing: this server runs no "
                "tools itself, and models know none but those that a request describes"
            )
        return value


class Choice(RequestModel):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def in_chat(self) -> Any:
        """The choice as chat has it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type

    @model_validator(mode="after")
    def _check_name(self) -> "Choice":
        if self.type == "tool" and self.name is None:
            raise InvalidRequestError(
                "'tool_choice.name': type tool needs it", param="tool_choice.name"
            )
        return self


class Thinking(RequestModel):
    """Whether the model thinks, in how many tokens at most, and whether the client sees it."""

    type: str
    budget_tokens: int | None = Field(None, ge=0, le=MAX_THINKING_TOKENS)
    display: str | None = None


class JsonFormat(RequestModel):
    """What the answer's text must be."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """The form of the answer, and how hard the model thinks."""

    format: JsonFormat | None = None
    effort: str | None = None


class Metadata(RequestModel):
    """Who asks, as the client names them."""

    user_id: str | None = None


class CountTokensBody(RequestBody):
    """A conversation."""

    model: str = Field(min_length=1, max_length=512)
    messages: Items[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Texts | None = None
    tools: Items[ClientTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # what `output_config.format` was called
    cache_control: dict[str, Any] | None = None  # known, and without effect: all is cached
    thread: Unthreaded = None

    @field_validator("thread")
    @classmethod
    def _refuse_thread(cls, value: Any) -> Any:
        if value is not None:
            raise ThreadError(
                "'thread': this server holds no conversations; send the whole one without it",
                param="thread",
            )
        return value

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, value: list[ClientTool] | None) -> list[ClientTool] | None:
        check_names([tool.name for tool in value or ()])
        return value

    @classmethod
    def check_together(cls, field: str, items: list[Any]) -> None:
        """Check that tools have names of their own."""
        if field == "tools":
            check_names(names_in(items))

    @field_validator("tool_choice")
    @classmethod
    def _check_tool_choice(cls, value: Choice | None, info: ValidationInfo) -> Choice | None:
        if value is not None and "tools" in info.data:  # not there: wrong themselves
            check_choice_among([tool.name for tool in info.data["tools"] or ()], value.in_chat)
        return value


class MessagesBody(CountTokensBody):
    """A conversation to go on with."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None  # not Anthropic's
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    stop_sequences: Items[StopSequence] | None = Field(None, max_length=MAX_STOP_SEQUENCES)
    metadata: Metadata | None = None
    seed: Seed = None  # not Anthropic's
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    service_tier: str | None = None  # known, and without effect
    # Known, and refused when set.
    container: Refused = None
    mcp_servers: Refused = None
