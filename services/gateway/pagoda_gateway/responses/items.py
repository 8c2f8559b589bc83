"""Blocks of an output as items, and the events that tell of each."""

from typing import Any

from pagoda_gateway.dialects import Block, BlockChange

_ID_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_PART_EVENTS = {"text": "response.output_text", "reasoning": "response.reasoning_text"}
_CALL_EVENT = "response.function_call_arguments"


def item(block: Block, request_id: str, status: str) -> dict[str, Any]:
    """Return an item: a message, a function call or reasoning; `status` as OpenAI has it."""
    known = {"id": _item_id(block, request_id), "status": status}
    is_begun = status == "in_progress"  # clients add up what the events after it bring
    if block.kind == "call":
        return {
            "type": "function_call",
            **known,
            "call_id": block.call_id,
            "name": block.name,
            "arguments": "" if is_begun else block.text,
        }
    parts = [] if is_begun else [_part(block, block.text)]
    if block.kind == "reasoning":
        return {"type": "reasoning", **known, "summary": [], "content": parts}
    return {"type": "message", **known, "role": "assistant", "content": parts}


def item_events(change: BlockChange, request_id: str, status: str) -> list[dict[str, Any]]:
    """Return the events of a change, without their numbers; `status` is the item's after it."""
    block = change.block
    place = {"item_id": _item_id(block, request_id), "output_index": block.index}
    is_call = block.kind == "call"
    if not is_call:
        place["content_index"] = 0
    name = _CALL_EVENT if is_call else _PART_EVENTS[block.kind]
    extras: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
    if change.kind == "text":
        return [{"type": f"{name}.delta", **place, "delta": change.text, **extras}]
    whole = {"output_index": block.index, "item": item(block, request_id, status)}
    if change.kind == "start":
        added = {"type": "response.output_item.added", **whole}
        part = {"type": "response.content_part.added", **place, "part": _part(block, "")}
        return [added] if is_call else [added, part]
    item_done = {"type": "response.output_item.done", **whole}
    if is_call:
        said = {"name": block.name, "arguments": block.text}
        return [{"type": f"{name}.done", **place, **said}, item_done]
    part_done = {"type": "response.content_part.done", **place, "part": _part(block, block.text)}
    return [{"type": f"{name}.done", **place, "text": block.text, **extras}, part_done, item_done]


def _item_id(block: Block, request_id: str) -> str:
    return f"{_ID_PREFIXES[block.kind]}_{request_id}_{block.index}"


def _part(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
