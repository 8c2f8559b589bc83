"""One answer of a chat as OpenAI writes it: content, reasoning and tool calls, whole or in deltas.

Knows the parts of an output, not how the model wrote them.
"""

from collections.abc import Callable
from typing import Any

from pagoda_gateway.dialects import (
    CallArguments,
    CallStart,
    ContentParser,
    ContentText,
    OutputParser,
    Part,
    ReasoningText,
    are_whole,
    read_parts,
)

_CALL, _TEXT_CALL = ("function", "arguments"), ("custom", "input")


class ChatMessage:
    """The message of one choice, as its text arrives."""

    def __init__(self, parser: OutputParser, new_call_id: Callable[[], str]) -> None:
        self._parser = parser
        self._is_verbatim = isinstance(parser, ContentParser)
        self._new_call_id = new_call_id
        self._arguments: list[str] = []  # of the latest call

    @property
    def has_calls(self) -> bool:
        """Whether the model has begun to call a tool."""
        return self._parser.has_calls

    @property
    def ends_with_a_call(self) -> bool:
        """Whether all of its latest call is there: a stop string may have ended it within."""
        return are_whole("".join(self._arguments))

    def delta(self, text: str, *, is_last: bool) -> dict[str, Any]:
        """Return what new text adds to the message, as a chunk's `delta` says it."""
        if self._is_verbatim:  # asked for each token
            return {"content": text} if text else {}
        return self._delta(read_parts(self._parser, text, is_last=is_last))

    def whole(self, text: str) -> dict[str, Any]:
        """Return the message that all of the text makes."""
        message = {"role": "assistant", "content": None, **self.delta(text, is_last=True)}
        message["refusal"] = None
        for call in message.get("tool_calls", ()):
            del call["index"]
        if message["content"] is None and not self.has_calls:
            message["content"] = ""
        return message

    def _delta(self, parts: list[Part]) -> dict[str, Any]:
        if len(parts) == 1 and isinstance(parts[0], ContentText):  # nearly every one
            return {"content": parts[0].text}
        delta: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            match part:
                case ContentText(text):
                    delta["content"] = delta.get("content", "") + text
                case ReasoningText(text):
                    delta["reasoning_content"] = delta.get("reasoning_content", "") + text
                case CallStart(index, name, takes_text):
                    self._arguments = []
                    kind, field = _TEXT_CALL if takes_text else _CALL
                    calls[index] = {
                        "index": index,
                        "id": self._new_call_id(),
                        "type": kind,
                        kind: {"name": name, field: ""},
                    }
                case CallArguments(index, text):
                    self._arguments.append(part.json)
                    kind, field = _CALL if part.written is None else _TEXT_CALL
                    if text or part.written is None:
                        call = calls.setdefault(index, {"index": index, kind: {field: ""}})
                        call[kind][field] += text
        if calls:
            delta["tool_calls"] = list(calls.values())
        return delta
