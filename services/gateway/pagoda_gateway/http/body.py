"""Request bodies: read within a byte limit, parsed as JSON, checked; errors name the field."""

import re
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from pagoda_gateway.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    MediaTypeError,
    shorten,
)

Body = TypeVar("Body", bound=BaseModel)

_MAX_PROBLEMS = 5
_MAX_PARAM_CHARS = 200
_UNION_PART = re.compile(r"^[a-z]+\[.*\]$")


async def read_body(request: Request, schema: type[Body], *, max_bytes: int) -> Body:
    """Return the request's body as `schema`.

    Raises:
        BodyTooLargeError, MediaTypeError, InvalidRequestError: says which field and limit.
    """
    media_type = request.headers.get("content-type", "application/json").split(";")[0].strip()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError(
            f"content-type is {shorten(media_type)}; send the body as application/json"
        )
    return parse_body(await _read_bytes(request, max_bytes), schema)


def parse_body(raw: bytes, schema: type[Body]) -> Body:
    """Return JSON text as `schema`.

    Raises:
        InvalidRequestError: names the first fields that are wrong.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {shorten(str(error))}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"the body must be a JSON object, not {type(value).__name__} {shorten(value)}"
        )
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _translate(error) from error


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isascii() and declared.isdigit() else 0
    chunks = bytearray()
    if size <= max_bytes:
        async for chunk in request.stream():
            chunks += chunk
            size = len(chunks)
            if size > max_bytes:
                break
    if size > max_bytes:
        raise BodyTooLargeError(
            f"the body has {size} bytes or more; the limit is {max_bytes} bytes"
        )
    return bytes(chunks)


def _translate(error: ValidationError) -> InvalidRequestError:
    problems = error.errors(include_url=False, include_context=False)
    lines = [f"'{_param(problem)}': {_describe(problem)}" for problem in problems[:_MAX_PROBLEMS]]
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"and {len(problems) - _MAX_PROBLEMS} more problems")
    return InvalidRequestError("; ".join(lines), param=_param(problems[0]))


def _param(problem: ErrorDetails) -> str:
    """Return the field as OpenAI writes it: messages[0].role."""
    path = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_PART.match(part):
            path += f".{part}" if path else part
    return path[:_MAX_PARAM_CHARS]


def _describe(problem: ErrorDetails) -> str:
    if problem["type"] == "missing":
        return "this field is required"
    value: Any = problem["input"]
    return f"{problem['msg']}, not {shorten(value)}"
