"""Items of what is kept, with their ids, in pages."""

from collections.abc import Iterable
from typing import Any, Literal

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.pages import list_page
from pagoda_gateway.responses.chat_messages import reasoning_texts

MAX_ITEMS = 100
DEFAULT_ITEMS = 20
_DONE = "completed"
_STATUSES = ("in_progress", _DONE, "incomplete")
_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip


def with_ids(
    previous: list[dict[str, Any]],
    items: Iterable[dict[str, Any]],
    name: str,
    *,
    keeps_ids: bool = True,
) -> list[dict[str, Any]]:
    """Return the items that are new after `previous`, each with an id that no other has.

    Args:
        previous: with their ids.
        items: as a client sent them.
        name: what ids are made of, where there are none; that of a response, or nobody else's.
        keeps_ids: False: none of the client's is one.
    """
    used = {item["id"] for item in previous}
    of_name = _of_name(name)
    named = []
    for index, item in enumerate(items):
        item_id = item.get("id")
        if not keeps_ids or not isinstance(item_id, str) or not item_id or item_id in used:
            item_id = f"{_PREFIXES[_kind(item)]}{of_name}in{index}"
        used.add(item_id)
        named.append({**item, "id": item_id})
    return named


def without_turn(items: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return a conversation's items without those that have their ids from the response `name`.

    That of a batch's line, whose gateway was killed, runs again: it is asked and answers once.
    """
    of_name = _of_name(name)
    return [item for item in items if of_name not in item["id"]]


def _of_name(name: str) -> str:
    return f"_{name.removeprefix('resp_')}_"


def item_page(
    items: list[dict[str, Any]], *, limit: int, after: str | None, order: Literal["asc", "desc"]
) -> dict[str, Any]:
    """Return a list of at most `limit` items, those that come after the one of the id `after`.

    Raises:
        InvalidRequestError: there is no item of that id.
    """
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(ordered, 1) if item["id"] == after]
        if not places:
            raise InvalidRequestError(
                f"'after' is {shorten(after)}; none of these items has that id", param="after"
            )
        ordered = ordered[places[0] :]
    return list_page([listed(item) for item in ordered[:limit]], has_more=len(ordered) > limit)


def _kind(item: dict[str, Any]) -> str:
    kind: str = item.get("type", "message")
    return kind


def listed(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as the API lists it: with every field, and texts as parts."""
    kind = _kind(item)
    status = item.get("status")  # what a client sent of it, nobody has checked
    listed = {"id": item["id"], "type": kind, "status": status if status in _STATUSES else _DONE}
    match kind:
        case "message":
            role = item["role"]
            own_kind = "output_text" if role == "assistant" else "input_text"
            return listed | {"role": role, "content": _parts(item["content"], own_kind)}
        case "function_call" | "custom_tool_call":
            named = ("call_id", "namespace", "name", "arguments", "input")
            return listed | {name: item[name] for name in named if item.get(name) is not None}
        case "function_call_output" | "custom_tool_call_output":
            output = item["output"]
            parts = output if isinstance(output, str) else _parts(output, "input_text")
            return listed | {"call_id": item["call_id"], "output": parts}
    sealed = item.get("encrypted_content")
    return listed | {
        "summary": _texts(item.get("summary"), "summary_text"),
        "content": _texts(item.get("content"), "reasoning_text"),
        **({"encrypted_content": sealed} if isinstance(sealed, str) else {}),
    }


def _parts(content: Any, kind: str) -> list[dict[str, Any]]:
    """Return the parts of a text or of a list that was taken as input; `kind` is a text's."""
    parts = [{"type": kind, "text": content}] if isinstance(content, str) else content
    return [_part(part, kind) for part in parts]


def _part(part: dict[str, Any], kind: str) -> dict[str, Any]:
    if part["type"] == "refusal":
        return {"type": "refusal", "refusal": part["refusal"]}
    text = {"type": kind, "text": part["text"]}
    return text | {"annotations": [], "logprobs": []} if kind == "output_text" else text


def _texts(parts: Any, kind: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": text} for text in reasoning_texts(parts)]
