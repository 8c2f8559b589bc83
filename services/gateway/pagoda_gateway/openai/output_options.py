"""Options of the output, checked without a model: choices, stop strings, what is refused."""

from typing import Any

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError, shorten
from pagoda_gateway.openai.schemas.generation import (
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    REFUSED_FIELDS,
    GenerationBody,
)
from pagoda_gateway.sequences.output_options import OutputOptions


def output_options(body: GenerationBody, *, num_logprobs: int | None, max_n: int) -> OutputOptions:
    """Check what the model has no say in."""
    refuse_unsupported(body)
    num_choices = 1 if body.n is None else body.n
    if not 1 <= num_choices <= max_n:
        raise InvalidRequestError(f"'n' is {num_choices}; it must be 1 to {max_n}", param="n")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "'stream_options' is only allowed with stream: true", param="stream_options"
        )
    return OutputOptions(
        num_choices=num_choices,
        stops=_stop_strings(body.stop),
        include_stop=bool(body.include_stop_str_in_output),
        num_logprobs=num_logprobs,
        min_tokens=body.min_tokens or 0,
        skip_special_tokens=body.skip_special_tokens is not False,
        return_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )


def refuse_unsupported(body: GenerationBody) -> None:
    """Raise for fields whose silent loss would change the answer."""
    for name in REFUSED_FIELDS:
        value = getattr(body, name)
        if value is None or value is False:
            continue
        if name == "prompt_logprobs" and value < 0:
            raise InvalidRequestError(f"'{name}' is {value}; it must be >= 0", param=name)
        raise UnsupportedFieldError(f"'{name}' is not supported by this server", param=name)
    if body.response_format is not None and body.response_format.type != "text":
        raise UnsupportedFieldError(
            f"'response_format.type' is {shorten(body.response_format.type)}; "
            "this server supports only 'text'",
            param="response_format",
        )


def _stop_strings(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop
    if stops is None:
        return ()
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise InvalidRequestError(
            f"'stop' must be a string or a list of strings, not {shorten(stop)}", param="stop"
        )
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"'stop' has {len(stops)} strings; the limit is {MAX_STOP_STRINGS}", param="stop"
        )
    for text in stops:
        if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                f"'stop' has a string of {len(text)} characters; each must have 1 to "
                f"{MAX_STOP_STRING_CHARS}",
                param="stop",
            )
    return tuple(stops)
