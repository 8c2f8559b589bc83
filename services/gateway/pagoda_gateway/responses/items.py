"""Blocks of an output as items, and the events that tell of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_gateway.dialects import Block, BlockChange
from pagoda_gateway.responses.sealed_reasoning import sealed

_ID_PREFIXES = {"text": "msg", "reasoning": "rs"}


@dataclass(frozen=True, slots=True)
class ItemForm:
    """How a client wants items.

    Attributes:
        namespaced: what a call says of a namespace's function, by the name that the model knows.
        summarises: reasoning is in the place of its summary, where the client looks for it.
        seals: reasoning has a copy that clients send back unread.
    """

    namespaced: Mapping[str, dict[str, str]]
    summarises: bool = False
    seals: bool = False


@dataclass(frozen=True, slots=True)
class _PartWords:
    """What parts of one kind are called by."""

    type: str
    index: str
    text_event: str
    part_event: str


_TEXT = _PartWords("output_text", "content_index", "response.output_text", "response.content_part")
_REASONING = _PartWords(
    "reasoning_text", "content_index", "response.reasoning_text", "response.content_part"
)
_SUMMARY = _PartWords(
    "summary_text", "summary_index",
    "response.reasoning_summary_text", "response.reasoning_summary_part",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _CallWords:
    """What calls of one kind are called by."""

    type: str
    prefix: str
    text: str
    event: str


_CALL = _CallWords("function_call", "fc", "arguments", "response.function_call_arguments")
_TEXT_CALL = _CallWords("custom_tool_call", "ctc", "input", "response.custom_tool_call_input")


def item(
    block: Block,
    request_id: str,
    status: str,
    logprobs: Sequence[Any] = (),
    *,
    form: ItemForm,
) -> dict[str, Any]:
    """Return an item: a message, a call or reasoning.

    Args:
        block: of the output.
        request_id: of the block's request.
        status: as OpenAI has it.
        logprobs: an entry for each token of a message's text.
        form: of items.
    """
    known = {"id": _item_id(block, request_id), "status": status}
    is_begun = status == "in_progress"  # clients add up what the events after it bring
    if block.kind == "call":
        words = _words(block)
        return {
            "type": words.type,
            **known,
            "call_id": block.call_id,
            **form.namespaced.get(block.name, {"name": block.name}),
            words.text: "" if is_begun else block.text,
        }
    parts = [] if is_begun else [_part(_part_words(block, form), block.text, logprobs)]
    if block.kind == "reasoning":
        found: dict[str, Any] = {"type": "reasoning", **known}
        found |= {"summary": parts} if form.summarises else {"summary": [], "content": parts}
        if form.seals:
            found["encrypted_content"] = None if is_begun else sealed(block.text)
        return found
    return {"type": "message", **known, "role": "assistant", "content": parts}


def item_events(
    change: BlockChange,
    request_id: str,
    status: str,
    *,
    new_logprobs: Sequence[dict[str, Any]] = (),
    logprobs: Sequence[Any] = (),
    form: ItemForm,
) -> list[dict[str, Any]]:
    """Return the events of a change, without their numbers.

    Args:
        change: of a block.
        request_id: of the block's request.
        status: the item's after the change.
        new_logprobs: an entry for each token of a message's new text.
        logprobs: at the end, of all its text.
        form: of items.
    """
    block = change.block
    place = {"item_id": _item_id(block, request_id), "output_index": block.index}
    is_call, is_text = block.kind == "call", block.kind == "text"
    parts = _part_words(block, form)
    if not is_call:
        place[parts.index] = 0
    name = _words(block).event if is_call else parts.text_event
    if change.kind == "text":
        new = {"logprobs": list(new_logprobs)} if is_text else {}
        return [{"type": f"{name}.delta", **place, "delta": change.text, **new}]
    whole = {
        "output_index": block.index,
        "item": item(block, request_id, status, logprobs, form=form),
    }
    if change.kind == "start":
        added = {"type": "response.output_item.added", **whole}
        part = {"type": f"{parts.part_event}.added", **place, "part": _part(parts, "")}
        return [added] if is_call else [added, part]
    item_done = {"type": "response.output_item.done", **whole}
    if is_call:
        said = {_words(block).text: block.text}
        if not block.takes_text:
            said = {**form.namespaced.get(block.name, {"name": block.name}), **said}
        return [{"type": f"{name}.done", **place, **said}, item_done]
    part = _part(parts, block.text, logprobs)
    part_done = {"type": f"{parts.part_event}.done", **place, "part": part}
    text_logprobs = {"logprobs": part["logprobs"]} if is_text else {}
    text_done = {"type": f"{name}.done", **place, "text": block.text, **text_logprobs}
    return [text_done, part_done, item_done]


def without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as a conversation keeps it: what goes on with it reads its text alone."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


def _words(block: Block) -> _CallWords:
    return _TEXT_CALL if block.takes_text else _CALL


def _item_id(block: Block, request_id: str) -> str:
    prefix = _words(block).prefix if block.kind == "call" else _ID_PREFIXES[block.kind]
    return f"{prefix}_{request_id}_{block.index}"


def _part_words(block: Block, form: ItemForm) -> _PartWords:
    if block.kind == "reasoning":
        return _SUMMARY if form.summarises else _REASONING
    return _TEXT


def _part(words: _PartWords, text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    part: dict[str, Any] = {"type": words.type, "text": text}
    return part | {"annotations": [], "logprobs": list(logprobs)} if words is _TEXT else part
