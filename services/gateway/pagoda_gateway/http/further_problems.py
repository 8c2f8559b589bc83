"""What is wrong with a list behind its first wrong item, where checking ends.

A list may have a million items, and an error for each takes minutes; a few are named all the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.base import RequestModel

MAX_NAMED_ITEMS = 16
MAX_ITEMS = 32_768  # of a list that is looked at again: in all as long as checking a good one


def with_further(
    problems: list[ErrorDetails],
    value: dict[str, Any],
    schema: type[BaseModel],
    limits: Mapping[str, int] | None,
) -> list[ErrorDetails]:
    """Return problems, and behind those of a list's item what the later items have."""
    found = []
    last = len(problems) - 1
    for index, problem in enumerate(problems):
        found.append(problem)
        at = _item(problem)
        if at is not None and (index == last or _item(problems[index + 1]) != at):
            found += _of_later_items(*at, value, schema, limits)
    return found


def _item(problem: ErrorDetails) -> tuple[str, int] | None:
    """Return field and index if a problem is that of an item in one of the body's lists."""
    match problem["loc"]:
        case (str(field), int(index), *_):
            return field, index
    return None


def _of_later_items(
    field: str,
    index: int,
    value: dict[str, Any],
    schema: type[BaseModel],
    limits: Mapping[str, int] | None,
) -> Iterator[ErrorDetails]:
    items = value.get(field)
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        return
    for _ in range(MAX_NAMED_ITEMS - 1):
        offset = index + 1
        problems = _problems_of_items(field, items[offset:], schema, limits)
        for problem in problems:
            _, place, *rest = problem["loc"]
            index = offset + int(place)
            yield {**problem, "loc": (field, index, *rest)}
        if not problems:
            yield from _of_all_together(field, items, schema)
            return
    if index + 1 < len(items):
        text = (
            f"'{field}': {MAX_NAMED_ITEMS} are wrong; those from [{index + 1}] on are not checked"
        )
        yield _problem(field, InvalidRequestError(text, param=field))


def _of_all_together(
    field: str, items: list[Any], schema: type[BaseModel]
) -> Iterator[ErrorDetails]:
    if not issubclass(schema, RequestModel):
        return
    try:
        schema.check_together(field, items)
    except InvalidRequestError as error:
        yield _problem(field, error)


def _problem(field: str, error: InvalidRequestError) -> ErrorDetails:
    return {"type": "", "loc": (field,), "msg": "", "input": None, "ctx": {"error": error}}


def _problems_of_items(
    field: str, items: list[Any], schema: type[BaseModel], limits: Mapping[str, int] | None
) -> list[ErrorDetails]:
    """Return the problems of the first wrong item."""
    try:
        schema.model_validate({field: items}, context=limits)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        return [problem for problem in problems if (_item(problem) or ("",))[0] == field]
    return []
