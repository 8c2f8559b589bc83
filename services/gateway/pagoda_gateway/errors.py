"""The gateway's error tree and its one translation into OpenAI error bodies.

GatewayError
├── InvalidRequestError          400  what a client sent cannot be served
│   ├── ContextLengthError       400  context_length_exceeded
│   ├── UnsupportedFieldError    400  unsupported_parameter
│   │   └── ThreadError          400  a conversation that clients of Anthropic's have held for them
│   ├── UnfollowableError        400  a schema or grammar that cannot be enforced
│   ├── ContentPolicyError       400  content_policy_violation
│   ├── PreviousResponseError    400  previous_response_not_found
│   ├── BodyTooLargeError        413
│   ├── SlowBodyError            408
│   ├── MediaTypeError           415
│   ├── StorageFullError         400  storage_limit_exceeded
│   ├── LongAnswerError          400  answer_too_long
│   ├── ModelNotFoundError       404  model_not_found
│   ├── NotFoundError            404
│   └── ConflictError            409  conflict
├── AuthenticationError          401  invalid_api_key
├── ForbiddenError               403  what this key may not
├── OverloadedError              429  with Retry-After
├── RateLimitError               429  rate_limit_exceeded
│   └── QuotaError               429  insufficient_quota
├── UnavailableError             503  with Retry-After
│   └── UndeliveredError         503  the client does not read what it asks for
├── DeadlineError                504
└── InternalError                500
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

MAX_MESSAGE_BYTES = 15_000  # an error body stays below 32 kB whatever the client sent
MAX_PROBLEMS = 64
MAX_VALUE_CHARS = 200
MAX_PARAM_CHARS = 200
_MAX_SHOWN_LEVELS = 3


def shorten(value: object, limit: int = MAX_VALUE_CHARS) -> str:
    """Return `repr(value)`, cut to `limit` characters."""
    # A huge value is cut before repr, so that an error costs no more than a good request; so is a
    # deep one, which repr would follow until Python's stack ends.
    text = repr(_cut(value, limit, levels=_MAX_SHOWN_LEVELS))
    return text if len(text) <= limit else text[:limit] + "..."


def _cut(value: object, limit: int, *, levels: int) -> object:
    """Return JSON data with no more than what `limit` characters could show."""
    if isinstance(value, str | bytes):
        return value[:limit]
    if isinstance(value, list):
        return [_cut(item, limit, levels=levels - 1) for item in value[:limit]] if levels else [...]
    if isinstance(value, dict):
        items = itertools.islice(value.items(), limit if levels else 0)
        return {_cut(k, limit, levels=0): _cut(v, limit, levels=levels - 1) for k, v in items}
    return value


def _cut_text(text: str) -> str:
    return text.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")


class GatewayError(Exception):
    """Root. Each kind knows its HTTP status, OpenAI `type` and `code`."""

    status = 500
    kind = "server_error"
    code: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        """Keep what the error body needs.

        Args:
            message: what, which value, which limit, what to do.
            param: the request's field.
            retry_after_seconds: when trying again makes sense.
        """
        super().__init__(_cut_text(message))
        self.param = param
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> dict[str, Any]:
        """Return the OpenAI error body."""
        return error_body(str(self), kind=self.kind, param=self.param, code=self.code)

    def headers(self) -> dict[str, str]:
        """Return Retry-After where there is one, in whole seconds."""
        if self.retry_after_seconds is None:
            return {}
        return {"retry-after": str(max(1, math.ceil(self.retry_after_seconds)))}


class InvalidRequestError(GatewayError, ValueError):
    """The client's request cannot be served as it is.

    A ValueError, so that pydantic gathers what validators raise.
    """

    status = 400
    kind = "invalid_request_error"
    code = "invalid_value"
    several: tuple["InvalidRequestError", ...] = ()
    """What it says together, of one that was `joined`."""

    def at(self, field: str) -> "InvalidRequestError":
        """Return it with the whole name of what is wrong, where it does not know that itself.

        What a validator finds in an item, which knows no index, has no param, or one that begins
        within the item (".text", "[1].text"), and a message that goes on from the name.
        """
        place = self.param or ""
        if place and place[0] not in ".[":
            return self
        name = (field + place)[:MAX_PARAM_CHARS]
        return type(self)(f"'{name}' {self}", param=name)


class ContextLengthError(InvalidRequestError):
    """Prompt, or prompt plus output, is longer than the model's context.

    Attributes:
        num_prompt_tokens: of the prompt; None: not tokenised, or something else is wrong too.
        num_wanted: output tokens that were asked for beside it, if these are what is too much.
        limit: tokens of the context.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        limit: int = 0,
        num_prompt_tokens: int | None = None,
        num_wanted: int = 0,
    ) -> None:
        """Keep the numbers, which other APIs put in words of their own."""
        super().__init__(message, param=param)
        self.limit = limit
        self.num_prompt_tokens = num_prompt_tokens
        self.num_wanted = num_wanted


class UnsupportedFieldError(InvalidRequestError):
    """A field that would change the answer, and that this server cannot honour."""

    code = "unsupported_parameter"


class ThreadError(UnsupportedFieldError):
    """A conversation that the server would hold: by `details` clients know to send all of it."""

    details: ClassVar[dict[str, Any]] = {"error_code": "thread_unsupported_request"}


class UnfollowableError(InvalidRequestError):
    """No grammar can be made of what the output must be.

    Attributes:
        at_fault: indices of the parts that fail alone; empty: none does.
    """

    def __init__(
        self, message: str, *, param: str | None = None, at_fault: Sequence[int] = ()
    ) -> None:
        """Keep what is at fault; for the others see `GatewayError`."""
        super().__init__(message, param=param)
        self.at_fault = at_fault


class ContentPolicyError(InvalidRequestError):
    """A rule of the tenant's policy refuses the text; names the rule, never the text."""

    code = "content_policy_violation"


class PreviousResponseError(InvalidRequestError):
    """The response that a request goes on with is not kept."""

    code = "previous_response_not_found"


class BodyTooLargeError(InvalidRequestError):
    """The request body is over the limit."""

    status = 413
    code = "request_too_large"


class SlowBodyError(InvalidRequestError):
    """The request body did not arrive in time."""

    status = 408
    code = "request_timeout"


class MediaTypeError(InvalidRequestError):
    """The body is not declared as JSON."""

    status = 415
    code = "unsupported_media_type"


class StorageFullError(InvalidRequestError):
    """The tenant keeps as much here as it may."""

    code = "storage_limit_exceeded"


class LongAnswerError(InvalidRequestError):
    """The answer is no stream, and got longer than such a one may be."""

    code = "answer_too_long"


class ModelNotFoundError(InvalidRequestError):
    """No such model here."""

    status = 404
    code = "model_not_found"


class NotFoundError(InvalidRequestError):
    """No such route or object."""

    status = 404
    code = "not_found"


class ConflictError(InvalidRequestError):
    """What is there already forbids it."""

    status = 409
    code = "conflict"


class AuthenticationError(GatewayError):
    """Missing or wrong API key."""

    status = 401
    kind = "invalid_request_error"  # as OpenAI says
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        """Return how a key is sent, which HTTP demands of every 401."""
        return super().headers() | {"www-authenticate": "Bearer"}


class ForbiddenError(GatewayError):
    """The key is good, but not for this."""

    status = 403
    kind = "permission_error"
    code = "forbidden"


class OverloadedError(GatewayError):
    """Every worker's queue is full."""

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"


class RateLimitError(GatewayError):
    """The caller's own limits have no room for the request."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        kind: str = "",
        should_retry: bool = True,
    ) -> None:
        """Keep what the error body needs.

        Args:
            message: whose limit, what is used, what to do.
            param: the request's field.
            retry_after_seconds: when the request fits, if nobody else asks; None: never.
            kind: OpenAI's `type`: what there is too much of; "": as the class says.
            should_retry: whether a client should try by itself, as OpenAI's clients do.
        """
        super().__init__(message, param=param, retry_after_seconds=retry_after_seconds)
        self.kind = kind or self.kind
        self._should_retry = should_retry

    def headers(self) -> dict[str, str]:
        """Return Retry-After, and what keeps OpenAI's clients from trying in vain."""
        return super().headers() | ({} if self._should_retry else {"x-should-retry": "false"})


class QuotaError(RateLimitError):
    """A budget is used up."""

    kind = "insufficient_quota"
    code = "insufficient_quota"


class UnavailableError(GatewayError):
    """Nothing can serve this now."""

    status = 503
    kind = "server_error"
    code = "unavailable"


class UndeliveredError(UnavailableError):
    """The client takes less than it asks for."""


class DeadlineError(GatewayError):
    """The request's deadline passed."""

    status = 504
    kind = "server_error"
    code = "deadline_exceeded"


class InternalError(GatewayError):
    """A fault of the platform; the log has the details."""

    code = "internal_error"


class Problems:
    """Gathers what is wrong with a request, so that one answer says all of it.

    It is the context manager itself: a request has several blocks, and a generator for each costs
    more than what most of them do.
    """

    def __init__(self) -> None:
        self._errors: list[InvalidRequestError] = []

    def __enter__(self) -> None:
        """Keep the error that ends the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, InvalidRequestError):
            return False
        self._errors.append(error)
        return True

    def __len__(self) -> int:
        """Return how many there are so far."""
        return len(self._errors)

    def raise_all(self) -> None:
        """Raise what was gathered, if anything was."""
        if self._errors:
            raise joined(self._errors)


def joined(errors: Sequence[InvalidRequestError]) -> InvalidRequestError:
    """Return one error that says all of them once; kind, code and param are the first one's."""
    first = errors[0]
    several = [single for error in errors for single in error.several or (error,)]
    if len(several) == 1:
        return first
    lines = list(dict.fromkeys(map(str, several)))
    more, lines = len(lines) - MAX_PROBLEMS, lines[:MAX_PROBLEMS]
    lines += [f"and {more} more problems"] * (more > 0)
    error = type(first)("; ".join(lines), param=first.param)
    error.several = tuple(several)
    return error


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return an OpenAI error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_KIND_OF_STATUS = {429: "rate_limit_error"}
_CODE_OF_STATUS = {404: "not_found", 405: "method_not_allowed"}


def http_error(status: int, detail: str) -> GatewayError:
    """Return an error that the web framework raised itself (unknown route, wrong method)."""
    error = GatewayError(detail)
    error.status = status
    error.kind = _KIND_OF_STATUS.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    error.code = _CODE_OF_STATUS.get(status)
    return error
