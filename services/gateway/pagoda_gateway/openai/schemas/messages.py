"""Messages of a conversation."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import core_schema

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.base import RequestModel, Tools

Role: TypeAlias = Literal["developer", "system", "user", "assistant", "tool", "function"]


class _TextOrParts:
    """One error where pydantic has one for each of the two that it could be."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.union_schema(
            [core_schema.str_schema(), core_schema.list_schema()],
            custom_error_type="content",
            custom_error_message="Input should be text or a list of parts",
            mode="left_to_right",
        )


_PARTS = {"type": "array", "items": {"type": "object"}}
Content = Annotated[
    Annotated[Any, _TextOrParts()] | None,  # null: of an answer or a result without text
    WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS]}),
]

_UNSENT = object()
_ALWAYS_TEXT = ("developer", "system", "user")  # others' messages are sent back as they came
_SAYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "refusal")


def wrong_text(where: str, field: str, part: dict[str, Any]) -> InvalidRequestError:
    """Return what is wrong with a part of a content whose `field` is no text."""
    why = f"must be text, not {shorten(part[field])}" if field in part else "this field is required"
    return InvalidRequestError(f"'{where}.{field}': {why}", param=f"{where}.{field}")


class Message(RequestModel):
    """One message; what the parts of `content` may be is checked by `openai.messages`."""

    role: Role
    name: str | None = None
    tool_calls: Tools | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # as newer servers call it
    refusal: str | None = None
    # After what its check looks at. Null may be sent: SDKs write it where there was no text.
    content: Content = Field(default_factory=lambda: _UNSENT, validate_default=True)

    @field_validator("content", mode="before")
    @classmethod
    def _check_said(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and value is not _UNSENT:
            return value
        role = info.data.get("role")
        if role in _ALWAYS_TEXT:
            raise InvalidRequestError("is required")
        said = [info.data.get(name, True) for name in _SAYS]  # not there: wrong itself
        says = any(it not in (None, "", []) for it in said)  # {} is a call, if a wrong one
        if role == "assistant" and value is _UNSENT and not says:
            raise InvalidRequestError("is required of an assistant without 'tool_calls'")
        return None
