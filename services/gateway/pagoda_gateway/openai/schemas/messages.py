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
from pagoda_gateway.openai.schemas.contents import TEXT_FIELDS, check_each, check_text_part
from pagoda_gateway.openai.schemas.custom_tools import CUSTOM

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


class Message(RequestModel):
    """One message."""

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

    @field_validator("tool_calls")
    @classmethod
    def _check_calls(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        check_each("", value or [], _check_call)
        return value

    @field_validator("function_call")
    @classmethod
    def _check_function(
        cls, value: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        if value is not None and not info.data.get("tool_calls"):  # which come before it
            _check_called("", value)
        return value

    @field_validator("content")
    @classmethod
    def _check_parts(cls, value: Any) -> Any:
        if type(value) is list:
            check_each("", value, _check_part)
        return value

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


def _check_part(place: str, part: Any) -> None:
    check_text_part(place, part, TEXT_FIELDS, 'parts {"type": "text", "text": "..."}')


def _check_call(place: str, call: dict[str, Any]) -> None:
    kind, call_id = call.get("type", "function"), call.get("id")
    if kind not in ("function", CUSTOM):
        raise _wrong(f"{place}.type", kind, "function or custom")
    if not isinstance(call_id, str | None):
        raise _wrong(f"{place}.id", call_id, "text")
    if kind == CUSTOM:
        match call.get(CUSTOM):
            case {"name": str(name), "input": str()} if name:
                return
        must_be = 'an object {"name": "...", "input": "..."}'
        raise _wrong(f"{place}.{CUSTOM}", call.get(CUSTOM), must_be)
    _check_called(f"{place}.function", call.get("function"))


def _check_called(place: str, function: Any) -> None:
    """Raise InvalidRequestError unless it is what a model called, and its arguments."""
    if not isinstance(function, dict):
        raise _wrong(place, function, 'an object {"name": "...", "arguments": "{...}"}')
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{place}.name", name, "the function's name")
    if not isinstance(arguments, str | dict | None):
        raise _wrong(f"{place}.arguments", arguments, "JSON as text")


def _wrong(place: str, value: Any, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"is {shorten(value)}; it must be {wanted}", param=place)
