"""Every text that a request shows to a model, wherever in the body; and the body rewritten."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from pagoda_gateway.openai.schemas.generation import GenerationBody

Body = TypeVar("Body", bound=GenerationBody)
Rewrite = Callable[[str], str]

FIELDS = (
    "messages", "prompt", "tools", "documents", "chat_template_kwargs", "reasoning_effort",
)  # fmt: skip
# Words of the API, not of the client: looked at, as a template may show them, and never changed.
_FIXED = frozenset({"role", "type", "id", "tool_call_id"})


def rewritten(body: Body, rewrite: Rewrite) -> Body:
    """Return the body with each text as `rewrite` returns it; token ids stay as they are."""
    changes: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(body, name, None)
        if value is not None:
            new = _rewritten(value, rewrite)
            if new is not value:
                changes[name] = new
    return body.model_copy(update=changes) if changes else body


def num_chars(body: GenerationBody) -> int:
    """Return how much text `rewritten` would look at."""
    total = 0

    def add(text: str) -> str:
        nonlocal total
        total += len(text)
        return text

    rewritten(body, add)
    return total


def plain_texts(body: GenerationBody) -> list[str]:
    """Return what people and models have said in it, in order: what a moderator judges."""
    texts = [item for item in getattr(body, "prompt", None) or () if isinstance(item, str)]
    for message in getattr(body, "messages", None) or ():
        content = message.content
        parts = content if isinstance(content, list) else [{"text": content}]
        said = [part.get("text") for part in parts if isinstance(part, dict)]
        said += [message.reasoning_content, message.reasoning, message.refusal]
        texts += [text for text in said if isinstance(text, str)]
    return texts


def prompt_tokens(body: GenerationBody) -> list[list[int]]:
    """Return the prompts that were sent as token ids."""
    items = getattr(body, "prompt", None) or ()
    return [item for item in items if isinstance(item, list)]


def _rewritten(value: Any, rewrite: Rewrite) -> Any:
    """Return the same object where nothing has changed."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, BaseModel):
        changes = _changes(dict(value), rewrite)
        return value.model_copy(update=changes) if changes else value
    if isinstance(value, Mapping):
        for name in value:
            rewrite(name)
        changes = _changes(value, rewrite)
        return {**value, **changes} if changes else value
    if isinstance(value, list) and not _is_tokens(value):
        _look_at_joined(value, rewrite)
        new = [_rewritten(item, rewrite) for item in value]
        return new if any(a is not b for a, b in zip(new, value, strict=True)) else value
    return value


def _changes(fields: Mapping[str, Any], rewrite: Rewrite) -> dict[str, Any]:
    changes = {}
    for name, value in fields.items():
        new = _rewritten(value, rewrite)
        if new is not value and name not in _FIXED:
            changes[name] = new
    return changes


def _look_at_joined(parts: list[Any], rewrite: Rewrite) -> None:
    """Show `rewrite` a message's text parts as one, which is how a template may write them."""
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    if len(texts) > 1 and all(isinstance(text, str) for text in texts):
        rewrite("".join(map(str, texts)))


def _is_tokens(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], int)
