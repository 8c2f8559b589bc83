"""Messages of a conversation."""

from typing import Annotated, Any

from pydantic import WithJsonSchema

from pagoda_gateway.openai.schemas.base import Content, RequestModel, Tools

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
# Checked by hand, so that the error can name the message.
Role = Annotated[str, WithJsonSchema({"enum": list(ROLES)})]


class Message(RequestModel):
    """One message; what `content` may be is checked by `openai.messages`."""

    role: Role
    content: Content = None
    name: str | None = None
    tool_calls: Tools | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # as newer servers call it
    refusal: str | None = None
