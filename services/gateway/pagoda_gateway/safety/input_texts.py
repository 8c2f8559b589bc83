"""Every text that a request shows to a model, wherever in the body; and the body rewritten."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.json_limits import MAX_DEPTH, count_structure
from pagoda_gateway.openai.schemas.contents import TEXT_FIELDS
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.tool_history import MAX_VALUES, called_with, num_values
from pagoda_gateway.safety.json_escapes import all_written_out

Body = TypeVar("Body", bound=GenerationBody)
BOUNDS = frozenset((
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "minItems", "maxItems", "minContains", "maxContains", "minProperties",
    "maxProperties",
))  # fmt: skip
"""Keywords of schemas whose numbers libraries write themselves."""
Step = Callable[[Any], Any]
"""Returns what stands for a value: the same object if nothing has changed."""


class Check(Protocol):
    """What looks at the texts."""

    def enter(self, field: str) -> None:
        """Hear which field of a chat's or a completion's body the texts that follow are in."""

    def rewrite(self, text: str) -> str:
        """Return what the model may see of a text."""

    def see(self, text: str, allowed: str) -> None:
        """Look at a text that a model sees, as `allowed`, and that cannot be changed any more.

        Raises:
            ContentPolicyError: it would have to be.
        """


def rewritten(body: Body, check: Check) -> Body:
    """Return the body with each text as `check` rewrites it; token ids stay as they are.

    Names of properties, ids and what only several texts together say are seen, not changed.

    Raises:
        InvalidRequestError: a call's arguments are nested too deep.
        ContentPolicyError: see `Check`.
    """
    changes: dict[str, Any] = {}
    for name, step in _Walk(check).fields.items():
        value = getattr(body, name, None)
        check.enter(name)
        if value is not None and (new := step(value)) is not value:
            changes[name] = new
    return body.model_copy(update=changes) if changes else body


def prompt_tokens(body: GenerationBody) -> list[list[int]]:
    """Return the prompts that were sent as token ids."""
    items = getattr(body, "prompt", None) or ()
    return [item for item in items if isinstance(item, list)]


def part_text(part: Mapping[str, Any]) -> Any:
    """Return the text of a part of a message; None: it has none."""
    kind = part.get("type")
    return part.get(TEXT_FIELDS.get(kind, "text") if isinstance(kind, str) else "text")


class _Walk:
    """Through one body.

    Attributes:
        fields: of the body that a model is shown, and what becomes of each.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._num_values = 0  # in calls' arguments
        self._are_schemas = False  # what is being looked at
        # Words of the API, of which there are few, are nothing that a client says.
        part = partial(self._fields, steps={"type": _same})
        function = partial(self._fields, steps={"arguments": self._arguments})
        call: dict[str, Step] = {
            "type": _same,
            "id": self._fixed,
            "function": function,
            "custom": self._fields,
        }
        self._message_steps: dict[str, Step] = {
            "role": _same,
            "tool_call_id": self._fixed,
            "content": partial(self._list, step=part, is_joined=True),
            "tool_calls": partial(self._list, step=partial(self._fields, steps=call)),
            "function_call": function,
        }
        grammar = partial(self._object, steps={"syntax": _same})
        form = partial(self._object, steps={"type": _same, "grammar": grammar})
        custom = partial(self._object, steps={"format": form})
        tool = partial(self._object, steps={"type": _same, "custom": custom})
        self.fields: dict[str, Step] = {
            "messages": partial(self._list, step=self._message),
            "prompt": partial(self._list, step=self._prompt),
            "tools": partial(self._tools, step=tool),
            "documents": self._any,
            "chat_template_kwargs": self._any,
            "reasoning_effort": self._any,
        }

    def _message(self, message: Message) -> Message:
        changes = self._changes(dict(message), self._message_steps)
        return message.model_copy(update=changes) if changes else message

    def _prompt(self, item: str | list[int]) -> str | list[int]:
        return self._check.rewrite(item) if isinstance(item, str) else item

    def _any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._check.rewrite(value)
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list):
            return self._list(value, self._any)
        if type(value) in (int, float):  # a text stands for one that may not be seen
            text = json.dumps(value)
            allowed = self._check.rewrite(text)
            return value if allowed == text else allowed
        return value

    def _object(self, value: Any, steps: Mapping[str, Step] | None = None) -> Any:
        """Look at an object whose names are the client's, too."""
        if not isinstance(value, Mapping):
            return self._any(value)
        for name in value:
            self._fixed(name)
        return self._fields(value, steps)

    def _fields(self, value: Any, steps: Mapping[str, Step] | None = None) -> Any:
        if not isinstance(value, Mapping):
            return self._any(value)
        changes = self._changes(value, steps or {})
        return {**value, **changes} if changes else value

    def _changes(self, fields: Mapping[str, Any], steps: Mapping[str, Step]) -> dict[str, Any]:
        changes = {}
        for name, value in fields.items():
            if self._are_schemas and name in BOUNDS and type(value) in (int, float):
                continue
            new = steps.get(name, self._any)(value)
            if new is not value:
                changes[name] = new
        return changes

    def _tools(self, items: Any, step: Step) -> Any:
        self._are_schemas = True
        try:
            return self._list(items, step)
        finally:
            self._are_schemas = False

    def _list(self, items: Any, step: Step, *, is_joined: bool = False) -> Any:
        """Look at each item; if templates join them, as a message's parts, at all in one, too."""
        if not isinstance(items, list):
            return self._any(items)
        new = [step(item) for item in items]
        texts, allowed = (_texts(items), _texts(new)) if is_joined else ([], [])
        if len(texts) > 1:
            for seam in ("", "\n"):
                self._check.see(seam.join(texts), seam.join(allowed))
        return new if any(a is not b for a, b in zip(new, items, strict=True)) else items

    def _fixed(self, value: Any) -> Any:
        """Look at a text that others go by."""
        if isinstance(value, str):
            self._check.see(value, value)
        return value

    def _arguments(self, sent: Any) -> Any:
        """Look at a call's arguments as the values that they are, and as they are written.

        Templates show either. What is no object in JSON is a text.
        """
        called = self._called_with(sent) if isinstance(sent, str) else sent
        if not isinstance(called, dict):
            return self._any(sent)
        allowed = self._any(called)
        written, shown = _json(called), _json(allowed)
        self._check.see(all_written_out(written), all_written_out(shown))
        if not isinstance(sent, str):
            return allowed
        if allowed is called:
            shown = sent
        if sent != written:
            self._check.see(all_written_out(sent), all_written_out(shown))
        return shown

    def _called_with(self, text: str) -> dict[str, Any] | None:
        self._num_values += num_values(text)
        if self._num_values > MAX_VALUES:  # which is refused later: it costs nothing here
            return None
        if text.count("{") + text.count("[") > MAX_DEPTH:
            depth, *_ = count_structure(text.encode())
            if depth > MAX_DEPTH:
                raise InvalidRequestError(
                    f"the arguments of a call are nested {depth} deep; the limit is {MAX_DEPTH}"
                )
        return called_with(text)


def _same(value: Any) -> Any:
    return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # as templates write it


def _texts(parts: list[Any]) -> list[str]:
    """Return the texts of a message's parts, or of documents; empty: these are no such."""
    texts = []
    for part in parts:
        text = part_text(part) if isinstance(part, dict) else None
        if not isinstance(text, str):
            return []
        texts.append(text)
    return texts
