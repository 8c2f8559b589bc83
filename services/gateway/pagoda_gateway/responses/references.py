"""References to items that were answered before: clients send an item's id for the item."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.responses.kept import Kept

KIND = "item_reference"
MAX_RESPONSES = 128  # that one request's references may be looked up in

Item = dict[str, Any]


async def referenced(
    items: Sequence[Item],
    previous: Sequence[Item],
    find: Callable[[str], Awaitable[Kept | None]],
) -> list[Item]:
    """Return `items` with the item in place of each reference to one.

    Args:
        items: as a client sent them.
        previous: what they go on with.
        find: what is kept of a response, by its id.

    Raises:
        InvalidRequestError: names a reference to what is not kept, or that they are too many.
    """
    wanted = {item["id"] for item in items if item.get("type") == KIND}
    if not wanted:  # as nearly always
        return list(items)
    known = {item["id"]: item for item in previous}
    looked: set[str] = set()
    used: set[str] = set()
    found = []
    for index, item in enumerate(items):
        if item.get("type") != KIND:
            found.append(item)
            continue
        item_id = item["id"]
        response_id = _response_of(item_id)
        if item_id not in known and response_id not in looked:
            looked.add(response_id)
            if len(looked) > MAX_RESPONSES:
                raise _error(index, f"more than {MAX_RESPONSES} responses are referred to")
            kept = await find(response_id)
            of_it = kept.value["items"] if kept else ()
            known |= {old["id"]: old for old in of_it if old["id"] in wanted}
        if item_id not in known:
            why = "items are for a while, with their response, unless store is false"
            raise _error(index, f"no item {shorten(item_id)} is kept: {why}")
        if item_id in used:  # a long one, time and again, would be a huge prompt
            raise _error(index, f"{shorten(item_id)} is there twice")
        used.add(item_id)
        found.append(known[item_id])
    return found


def _response_of(item_id: str) -> str:
    """Return the id of the response that an item's id was made of."""
    return f"resp_{item_id.partition('_')[2].rpartition('_')[0]}"


def _error(index: int, why: str) -> InvalidRequestError:
    place = f"input[{index}]"
    return InvalidRequestError(f"'{place}': {why}. Send the item itself.", param=place)
