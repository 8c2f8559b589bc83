"""Calls in a conversation's history, as chat templates want them."""

import json
from typing import Any

import orjson

from pagoda_gateway.dialects import fitting_call_id
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.custom_tools import function_called
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.text.templates.shape import TemplateShape

RESULT_ROLES = ("tool", "function")
MAX_VALUES = 65_536  # in the arguments of all calls: each becomes an object on the event loop


class ToolHistory:
    """Reads the calls of one conversation's messages, and the ids of their results.

    Where the template asks for ids of one length, others become such: of the same call the same.
    Those that are missing are made up, the first result's like the first call's.
    """

    def __init__(self, shape: TemplateShape) -> None:
        self._shape = shape
        self._num_values = 0
        self._num_unnamed_calls = 0
        self._num_unnamed_results = 0

    def calls(self, where: str, message: Message) -> list[dict[str, Any]]:
        """Return the calls of the message that errors name `where`.

        Raises:
            InvalidRequestError: the arguments so far have too many values.
        """
        if message.function_call is not None and not message.tool_calls:  # OpenAI's older word
            function = self._function(f"{where}.function_call", message.function_call)
            return [self._identified(None, {"type": "function", "function": function})]
        return [
            self._call(f"{where}.tool_calls[{i}]", call)
            for i, call in enumerate(message.tool_calls or [])
        ]

    def _call(self, where: str, call: dict[str, Any]) -> dict[str, Any]:
        called = function_called(call)
        function = self._function(f"{where}.{call.get('type', 'function')}", called)
        return self._identified(call.get("id"), {"type": "function", "function": function})

    def _identified(self, call_id: str | None, call: dict[str, Any]) -> dict[str, Any]:
        if call_id is None:
            self._num_unnamed_calls += 1
        return {"id": self._fitting(call_id, self._num_unnamed_calls), **call}

    def result_id(self, message: Message) -> str | None:
        """Return the id of the call whose result a message is; None if it says none."""
        if message.role not in RESULT_ROLES:
            return message.tool_call_id
        if message.tool_call_id is None:
            self._num_unnamed_results += 1
        return self._fitting(message.tool_call_id, self._num_unnamed_results)

    def _fitting(self, call_id: str | None, number: int) -> str:
        num_chars = self._shape.call_id_chars
        if num_chars is None:
            return f"call_{number}" if call_id is None else call_id
        return fitting_call_id(f"\0{number}" if call_id is None else call_id, num_chars)

    def _function(self, where: str, function: dict[str, Any]) -> dict[str, Any]:
        name, text = function["name"], function.get("arguments")
        if isinstance(text, dict):
            text = json.dumps(text, ensure_ascii=False)  # as templates write them
        arguments = self._object(f"{where}.arguments", text or "")
        if not self._shape.arguments_text:
            return {"name": name, "arguments": arguments}
        return {"name": name, "arguments": text if arguments else "{}"}

    def _object(self, where: str, text: str) -> dict[str, Any]:
        """Return the arguments; those that a model wrote wrongly are none."""
        self._num_values += num_values(text)
        if self._num_values > MAX_VALUES:
            raise InvalidRequestError(
                f"'{where}': with it the calls' arguments have {self._num_values} values; the "
                f"limit is {MAX_VALUES}. Send less at once.",
                param=where,
            )
        return called_with(text) or {}


def num_values(text: str) -> int:
    """Return how many values JSON text may have."""
    return sum(map(text.count, ",[{"))


def called_with(text: str) -> dict[str, Any] | None:
    """Return the arguments that a call's JSON text is; None: it is no object."""
    try:
        found = orjson.loads(text)
        orjson.dumps(found)  # what is nested too deep to be written again is wrong too
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    return found if isinstance(found, dict) else None
