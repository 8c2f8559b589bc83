"""Request bodies: bounds first, then JSON, then its schema; errors name the field."""

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from pagoda_gateway.errors import InvalidRequestError, MediaTypeError, shorten
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.json_limits import check_structure

Body = TypeVar("Body", bound=BaseModel)

_MAX_PROBLEMS = 5
_MAX_PARAM_CHARS = 200
_UNION_PART = re.compile(r"^[a-z]+\[.*\]$")


@contextlib.asynccontextmanager
async def read_body(
    request: Request, schema: type[Body], reader: BodyReader
) -> AsyncIterator[Body]:
    """Yield the request's body as `schema`; its bytes are in the reader's budget until the end.

    Raises:
        GatewayError: says which field and limit.
        starlette.requests.ClientDisconnect: the client left while it sent.
    """
    media_type = request.headers.get("content-type", "application/json").split(";")[0].strip()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError(
            f"content-type is {shorten(media_type)}; send the body as application/json"
        )
    async with reader.read(request) as raw:
        await check_structure(raw)
        body = parse_body(raw, schema)
        del raw  # its text is in the body now
        yield body


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
        # Not its cause: traces and logs would print what the client sent, all of it.
        raise _translate(error) from None


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
