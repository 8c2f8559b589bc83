"""What a request says, as text: what moderators judge, and whether that is little.

Knows no rule.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from pagoda_gateway.openai.schemas.custom_tools import function_called
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.tool_history import MAX_VALUES, called_with, num_values
from pagoda_gateway.safety.input_texts import part_text

VALUE_CHARS = 64  # what a value costs beside its characters, in characters
SEAM_CHARS = 64  # on each side of where two parts meet


def is_small(value: Any, max_chars: int) -> bool:
    """Return whether a body, or what is in it, has no more text than this; costs no more."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        max_chars -= VALUE_CHARS
        if isinstance(item, str):  # it may be JSON, of so many values
            max_chars -= len(item) + VALUE_CHARS * num_values(item)
        if max_chars < 0:
            return False
        if isinstance(item, BaseModel):
            waiting += [value for _, value in item if value is not None]
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
    return True


def said_texts(body: GenerationBody) -> list[str]:
    """Return what people and models have said in it, in order: what a moderator judges.

    Of tools it is what describes them; the rest is the words of schemas.
    """
    texts = [item for item in getattr(body, "prompt", None) or () if isinstance(item, str)]
    for message in getattr(body, "messages", None) or ():
        texts += _of_message(message)
    for name in ("documents", "chat_template_kwargs", "reasoning_effort"):
        texts += _strings(getattr(body, name, None))
    return [*texts, *_descriptions(getattr(body, "tools", None))]


def _of_message(message: Message) -> Iterator[str]:
    if isinstance(message.content, list):
        yield from _of_parts([part_text(part) for part in message.content])
    others = (message.name, message.reasoning_content, message.reasoning, message.refusal)
    for text in (message.content, *others):
        if isinstance(text, str):
            yield text
    for call in message.tool_calls or ():
        yield from _of_function(function_called(call))
    if message.function_call is not None:
        yield from _of_function(message.function_call)


def _of_parts(texts: list[str]) -> Iterator[str]:
    """Yield the parts, and once more as one text where they meet: templates may join them."""
    yield from texts
    if len(texts) > 1:
        ends = ((text[:SEAM_CHARS], text[SEAM_CHARS:][-SEAM_CHARS:]) for text in texts)
        yield "".join(f"{begin}{end}" for begin, end in ends)


def _of_function(function: Mapping[str, Any]) -> Iterator[str]:
    arguments, called = function.get("arguments"), None
    if isinstance(arguments, str) and num_values(arguments) <= MAX_VALUES:
        called = called_with(arguments)
    yield function["name"]
    yield from _strings(arguments if called is None else called)


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts within a value, names of properties too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield name
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _descriptions(value: Any) -> Iterator[str]:
    """Yield what is called a description in a value, however deep."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name == "description" and isinstance(item, str):
                yield item
            else:
                yield from _descriptions(item)
    elif isinstance(value, list):
        for item in value:
            yield from _descriptions(item)
