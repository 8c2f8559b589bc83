"""Blocks of an output as items, and the events that tell of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_gateway.dialects import Block, BlockChange

_ID_PREFIXES = {"text": "msg", "reasoning": "rs"}
_PART_EVENTS = {"text": "response.output_text", "reasoning": "response.reasoning_text"}


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
    namespaced: Mapping[str, dict[str, str]],
) -> dict[str, Any]:
    """Return an item: a message, a call or reasoning.

    Args:
        block: of the output.
        request_id: of the block's request.
        status: as OpenAI has it.
        logprobs: an entry for each token of a message's text.
        namespaced: what a call says of a namespace's function, by the name that the model knows.
    """
    known = {"id": _item_id(block, request_id), "status": status}
    is_begun = status == "in_progress"  # clients add up what the events after it bring
    if block.kind == "call":
        words = _words(block)
        return {
            "type": words.type,
            **known,
            "call_id": block.call_id,
            **namespaced.get(block.name, {"name": block.name}),
            words.text: "" if is_begun else block.text,
        }
    parts = [] if is_begun else [_part(block, block.text, logprobs)]
    if block.kind == "reasoning":
        return {"type": "reasoning", **known, "summary": [], "content": parts}
    return {"type": "message", **known, "role": "assistant", "content": parts}


def item_events(
    change: BlockChange,
    request_id: str,
    status: str,
    *,
    new_logprobs: Sequence[dict[str, Any]] = (),
    logprobs: Sequence[Any] = (),
    namespaced: Mapping[str, dict[str, str]],
) -> list[dict[str, Any]]:
    """Return the events of a change, without their numbers.

    Args:
        change: of a block.
        request_id: of the block's request.
        status: the item's after the change.
        new_logprobs: an entry for each token of a message's new text.
        logprobs: at the end, of all its text.
        namespaced: see `item`.
    """
    block = change.block
    place = {"item_id": _item_id(block, request_id), "output_index": block.index}
    is_call = block.kind == "call"
    if not is_call:
        place["content_index"] = 0
    name = _words(block).event if is_call else _PART_EVENTS[block.kind]
    is_text = block.kind == "text"
    if change.kind == "text":
        new = {"logprobs": list(new_logprobs)} if is_text else {}
        return [{"type": f"{name}.delta", **place, "delta": change.text, **new}]
    whole = {
        "output_index": block.index,
        "item": item(block, request_id, status, logprobs, namespaced=namespaced),
    }
    if change.kind == "start":
        added = {"type": "response.output_item.added", **whole}
        part = {"type": "response.content_part.added", **place, "part": _part(block, "")}
        return [added] if is_call else [added, part]
    item_done = {"type": "response.output_item.done", **whole}
    if is_call:
        said = {_words(block).text: block.text}
        if not block.takes_text:
            said = {**namespaced.get(block.name, {"name": block.name}), **said}
        return [{"type": f"{name}.done", **place, **said}, item_done]
    part = _part(block, block.text, logprobs)
    part_done = {"type": "response.content_part.done", **place, "part": part}
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


def _part(block: Block, text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
