"""Request bodies: bounds first, then JSON, then its schema; errors name the field."""

import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from pagoda_gateway.body_budget import HeldBytes
from pagoda_gateway.errors import (
    MAX_PARAM_CHARS,
    InvalidRequestError,
    MediaTypeError,
    joined,
    shorten,
)
from pagoda_gateway.http.body_reader import BodyReader, check_encoding
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.further_problems import with_further
from pagoda_gateway.http.ignored_fields import note_ignored
from pagoda_gateway.http.request_head import header
from pagoda_gateway.json_limits import check_members, check_structure, json_problem

Body = TypeVar("Body", bound=BaseModel)

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
    with reader.held() as held:
        value = await read_object(request, reader, held)
        note_ignored(request.scope, value, schema)
        tenant, validate = caller_of(request).tenant, partial(validated, value, schema)
        body = await reader.large.read(tenant, held.num_bytes, validate)
        del value
        yield body


async def read_object(request: Request, reader: BodyReader, held: HeldBytes) -> dict[str, Any]:
    """Return the request's body as a JSON object, whose bytes are `held` from now on.

    Raises:
        GatewayError: it is none, or over a limit.
        starlette.requests.ClientDisconnect: the client left while it sent.
    """
    declared = header(request.scope, b"content-type") or "application/json"
    media_type = declared.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError(
            f"content-type is {shorten(media_type)}; send the body as application/json"
        )
    check_encoding(request)
    raw = await reader.read(request, held)
    tenant = caller_of(request).tenant
    return await reader.large.read(tenant, len(raw), partial(parse_object, raw))


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return JSON text as an object.

    Raises:
        InvalidRequestError: it is none, or there is too much in it.
    """
    check_structure(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body is not valid JSON: {json_problem(raw, error)}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"the body must be a JSON object, not {type(value).__name__} {shorten(value)}"
        )
    check_members(value)
    return value


def validated(
    value: dict[str, Any], schema: type[Body], limits: Mapping[str, int] | None = None
) -> Body:
    """Return a JSON object as `schema`.

    Args:
        value: the object.
        schema: of the body.
        limits: what the schema's validators ask their context for.

    Raises:
        InvalidRequestError: names every field that is wrong.
    """
    try:
        return schema.model_validate(value, context=limits)
    except ValidationError as error:
        problems = with_further(error.errors(include_url=False), value, schema, limits)
        # Not its cause: traces and logs would print what the client sent, all of it.
        found = itertools.chain.from_iterable(map(_translate, problems))
        raise joined(list(found)) from None


def _translate(problem: ErrorDetails) -> list[InvalidRequestError]:
    param = _param(problem)
    raised = problem.get("ctx", {}).get("error")  # by a validator of ours
    if isinstance(raised, InvalidRequestError):
        return [error.at(param) for error in raised.several or [raised]]
    return [InvalidRequestError(f"'{param}': {_describe(problem)}", param=param)]


def _param(problem: ErrorDetails) -> str:
    """Return the field as OpenAI writes it: messages[0].role."""
    path = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_PART.match(part):
            path += f".{part}" if path else part
    return path[:MAX_PARAM_CHARS]


def _describe(problem: ErrorDetails) -> str:
    if problem["type"] == "missing":
        return "this field is required"
    value: Any = problem["input"]
    return f"{problem['msg']}, not {shorten(value)}"
