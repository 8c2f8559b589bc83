"""Whether requests of a batch are good: each is looked at before the first one runs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from pagoda_gateway.batches.line_reader import Line
from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.json_limits import check_structure, json_problem

MAX_ERRORS = 100
MAX_CUSTOM_ID_CHARS = 512
_INLINE_BYTES = 65_536  # parsing more leaves the event loop


@dataclass(slots=True)
class Validation:
    """What was found.

    Attributes:
        num_lines: requests.
        model: of the first one.
        errors: as the API says them, MAX_ERRORS at most.
    """

    num_lines: int = 0
    model: str = ""
    errors: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of_error(cls, code: str, message: str) -> "Validation":
        """Return what is wrong with the file as a whole."""
        return cls(errors=[_error(code, message)])


class RequestError(Exception):
    """What is wrong with one request; `param`: with which part of it."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


async def validate(
    lines: AsyncIterator[Line],
    *,
    endpoint: str,
    max_lines: int,
    max_line_bytes: int,
    check_model: Callable[[str], object],
) -> Validation:
    """Look at all lines, or at those up to the last error that is told.

    Args:
        lines: of the file.
        endpoint: that the batch names.
        max_lines: of one batch.
        max_line_bytes: that `lines` keeps of each.
        check_model: raises InvalidRequestError for a model that is not here.
    """
    found = Validation()
    seen: dict[bytes, str] = {}
    async for line in lines:
        found.num_lines += 1
        try:
            if found.num_lines > max_lines:
                raise RequestError(
                    "too_many_requests",
                    f"the file has more than {max_lines} requests, the limit of one batch; split "
                    "it",
                )
            if line.text is None:
                raise RequestError(
                    "line_too_long",
                    f"the line has {line.size} bytes; the limit is {max_line_bytes}",
                )
            value = await _parse(line.text)
            check_custom_id(value.get("custom_id"), f"line {line.number}", seen)
            _check_target(value, endpoint)
            model = check_body(value.get("body"), "body", check_model)
            found.model = found.model or model
        except RequestError as error:
            found.errors.append(_error(error.code, str(error), line.number, error.param))
        if len(found.errors) >= MAX_ERRORS or found.num_lines > max_lines:
            break
    if not found.num_lines:
        found.errors.append(_error("empty_file", "the input file has no requests"))
    return found


def _error(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}


async def _parse(text: bytes) -> dict[str, Any]:
    try:
        if len(text) <= _INLINE_BYTES:
            value = _loads(text)
        else:
            value = await asyncio.to_thread(_loads, text)
    except orjson.JSONDecodeError as error:
        message = f"this line is not valid JSON: {json_problem(text, error)}"
        raise RequestError("invalid_json_line", message) from None
    except InvalidRequestError as error:
        raise RequestError("invalid_json_line", str(error)) from None
    if not isinstance(value, dict):
        raise RequestError(
            "invalid_json_line", f"this line must be a JSON object, not {shorten(value)}"
        )
    return value


def _loads(text: bytes) -> Any:
    check_structure(text)
    return orjson.loads(text)


def check_custom_id(custom_id: object, place: str, seen: dict[bytes, str]) -> None:
    """Check that a request has a name of its own.

    Args:
        custom_id: the name.
        place: where the request is.
        seen: the places of names, by their digests; this one's is added.

    Raises:
        RequestError: it has none.
    """
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        raise RequestError(
            "invalid_custom_id",
            f"'custom_id' must be text of 1 to {MAX_CUSTOM_ID_CHARS} characters, not "
            f"{shorten(custom_id)}",
            "custom_id",
        )
    first = seen.setdefault(hashlib.blake2b(custom_id.encode(), digest_size=16).digest(), place)
    if first != place:
        raise RequestError(
            "duplicate_custom_id",
            f"'custom_id' {shorten(custom_id)} is that of {first} too; each needs its own",
            "custom_id",
        )


def _check_target(value: dict[str, Any], endpoint: str) -> None:
    if value.get("method") != "POST":
        raise RequestError(
            "invalid_method", f"'method' must be POST, not {shorten(value.get('method'))}", "method"
        )
    if value.get("url") != endpoint:
        raise RequestError(
            "invalid_url",
            f"'url' is {shorten(value.get('url'))}; the batch's endpoint is {endpoint}",
            "url",
        )


def check_body(body: object, field: str, check_model: Callable[[str], object]) -> str:
    """Return the model that a request asks; its body is called `field`.

    Raises:
        RequestError: it is none that a batch can have; see `validate`.
    """
    if not isinstance(body, dict):
        raise RequestError(
            "invalid_body", f"'{field}' must be an object, not {shorten(body)}", field
        )
    for name in ("stream", "background"):
        if body.get(name):
            raise RequestError(
                "invalid_body",
                f"'{name}' is not possible in a batch; leave it out",
                f"{field}.{name}",
            )
    model = body.get("model")
    if not isinstance(model, str):
        raise RequestError(
            "model_not_found",
            f"'model' must be a model's name, not {shorten(model)}",
            f"{field}.model",
        )
    try:
        check_model(model)
    except InvalidRequestError as error:
        raise RequestError("model_not_found", str(error), f"{field}.model") from None
    return model
