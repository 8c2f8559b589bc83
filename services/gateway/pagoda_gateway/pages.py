"""Pages of lists, as clients of OpenAI's and Anthropic's know them."""

from collections.abc import Sequence
from typing import Any


def list_page(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return some objects as a page; `has_more`: others follow."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
