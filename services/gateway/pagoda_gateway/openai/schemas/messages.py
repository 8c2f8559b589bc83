"""Messages of a conversation."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import core_schema

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


class Message(RequestModel):
    """One message; what the parts of `content` may be is checked by `openai.messages`."""

    role: Role
    content: Content = None
    name: str | None = None
    tool_calls: Tools | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # as newer servers call it
    refusal: str | None = None
