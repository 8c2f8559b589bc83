"""What is said of a response that another gateway makes, or that is not kept.

Its account tells, which is known by the names of its fields.
"""

from collections.abc import Mapping
from typing import Any

from pagoda_gateway.errors import NotFoundError, shorten

LAST_WORD_SECONDS = 600.0  # behind an account, as its own gateway has to say otherwise (ADR 21)
_DIED = "the gateway that made it died before it had ended, and its text with it; "
_BILLED = "its receipt says what of it is billed. Ask again."
_MESSAGES = {
    "reconciled": _DIED + _BILLED,
    "lost": _DIED + "nothing of it is billed. Ask again.",
    "failed": "it failed at another replica, or before a restart, where the reason was kept",
}
"""Of outcomes after which nobody has an answer."""


def lost_message(account: Mapping[Any, Any]) -> str:
    """Return why what a gateway should have kept by now was not; empty: it may yet be."""
    if account["closed_unix_seconds"] is None:
        return ""
    return _MESSAGES.get(account["outcome"] or "", _DIED + _BILLED)


def has_died(account: Mapping[Any, Any], now: float) -> bool:
    """Return whether the gateway that made it will not say itself any more how it has ended."""
    closed: float = account["closed_unix_seconds"]
    return now - closed >= LAST_WORD_SECONDS


def unkept_response(account: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a response of another gateway as far as its account tells of it.

    It is in progress as long as its account is open: its gateway works on it, or is dead and has
    not been missed for long enough.

    Raises:
        NotFoundError: it had an end, which only that gateway can tell.
    """
    is_open = account["closed_unix_seconds"] is None
    message = _MESSAGES.get(account["outcome"] or "")
    if not is_open and message is None:
        raise NotFoundError(
            f"response {shorten(account['object_id'])} has ended ({account['outcome']}) and is not "
            "kept, or no longer: ask again. Its receipt says what is billed."
        )
    error = None if is_open else {"code": "server_error", "message": message}
    return {
        "id": account["object_id"],
        "object": "response",
        "created_at": int(account["opened_unix_seconds"]),
        "status": "in_progress" if is_open else "failed",
        "background": None,
        "conversation": None,
        "error": error,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": account["model"],
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "usage": None,  # the receipt has it
        "user": None,
    }
