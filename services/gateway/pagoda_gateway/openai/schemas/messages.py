"""Messages of a conversation."""

from typing import Any

from pagoda_gateway.openai.schemas.base import Content, RequestModel, Tools


class Message(RequestModel):
    """One message; what `content` may be is checked by `openai.messages`."""

    role: str
    content: Content = None
    name: str | None = None
    tool_calls: Tools | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
