"""What the parts of a message's content must be, whatever the model."""

from collections.abc import Callable, Mapping
from typing import Any

from pagoda_gateway.errors import InvalidRequestError, Problems, shorten

MAX_NAMED_PARTS = 16  # of those that are wrong
TEXT_FIELDS = {"text": "text", "refusal": "refusal"}
"""By their types, the fields that hold the text of a chat's parts."""

CheckPart = Callable[[str, Any], object]
"""Raises InvalidRequestError for a part that is wrong; also given its place, such as `[0]`."""


def check_each(place: str, parts: list[Any], check: CheckPart) -> None:
    """Raise one InvalidRequestError for the first few parts that are wrong.

    `place`: of the list within what is checked; errors name the part behind it.
    """
    problems = Problems()
    for index, part in enumerate(parts):
        with problems:
            check(f"{place}[{index}]", part)
        if len(problems) == MAX_NAMED_PARTS:
            break
    problems.raise_all()


def check_content(place: str, content: Any, check: CheckPart, *, parts: str = "parts") -> None:
    """Raise InvalidRequestError unless content is text, or a list whose parts are right."""
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"must be text or a list of {parts}, not {shorten(content)}", param=place
        )
    check_each(place, content, check)


def check_text_part(place: str, part: Any, fields: Mapping[str, str], taken: str) -> None:
    """Raise InvalidRequestError unless a part is text.

    Args:
        place: of the part.
        part: what was sent.
        fields: by the types that a part may have, the field with its text.
        taken: these types, in words.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    field = fields.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise InvalidRequestError(
            f"has type {shorten(kind)}; this model takes only text: {taken}", param=place
        )
    text = part.get(field)
    if not isinstance(text, str):
        why = f"must be text, not {shorten(text)}" if field in part else "is required"
        raise InvalidRequestError(why, param=f"{place}.{field}")
