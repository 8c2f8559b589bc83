"""Checks that pydantic has no words for.

Schemas run them as validators, and pydantic gathers what they raise with what it finds itself, so
one answer names every wrong field. Knows no model: whether token ids exist and a prompt fits
is checked later.
"""

from collections.abc import Sequence, Sized
from typing import Any

from pydantic import ValidationInfo

from pagoda_gateway.errors import (
    InvalidRequestError,
    Problems,
    UnsupportedFieldError,
    joined,
    shorten,
)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_STOP_STRINGS = 4
MAX_STOP_STRING_CHARS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_DRY_SEQUENCE_BREAKERS = 32
MAX_DRY_SEQUENCE_BREAKER_CHARS = 64
MAX_LOGIT_BIAS = 4096
MAX_NAMED_KEYS = 50
_TEMPLATE_FIELDS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
MAX_NAMED_PROMPTS = 16  # of those that are wrong
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


def whole_numbers(value: Any) -> Any:
    """Return JSON data with integers for numbers such as 2.0, in lists too; objects are left."""
    # A number beyond int64 is no longer what the client wrote: whoever reads it refuses it.
    if type(value) is float and value.is_integer() and INT64_MIN < value < INT64_MAX:
        return int(value)
    if type(value) is not list:
        return value
    kinds = set(map(type, value))
    if list in kinds:
        return [whole_numbers(item) if type(item) is list else item for item in value]
    if float in kinds and kinds <= {int, float}:
        whole = list(map(int, value))  # a million token ids: no call of ours for each
        return whole if whole == value else value
    return value


def check_n(n: int | None, max_n: int) -> None:
    """Raise InvalidRequestError unless 1 <= n <= max_n; None means 1."""
    if n is not None and not 1 <= n <= max_n:
        raise InvalidRequestError(f"'n' is {n}; it must be 1 to {max_n}", param="n")


def check_min_tokens(min_tokens: int | None, limit: int | None, limit_name: str) -> None:
    """Raise InvalidRequestError if the least is more than the most; None is no bound."""
    if min_tokens is not None and limit is not None and min_tokens > limit:
        raise InvalidRequestError(
            f"'min_tokens' is {min_tokens}; it must be <= {limit_name} {limit}", param="min_tokens"
        )


def check_seed(seed: Any) -> None:
    """Raise InvalidRequestError for a number that JSON parsers made a float of."""
    if type(seed) is float and not INT64_MIN < seed < INT64_MAX:
        raise InvalidRequestError(
            f"'seed' is {seed:.17g}; it must be {INT64_MIN} to {INT64_MAX}", param="seed"
        )


def checked_continuation(value: bool | None, info: ValidationInfo) -> bool | None:
    """Return a body's `continue_final_message`, for its validator.

    Raises:
        InvalidRequestError: the last message is to go on, and another one to begin, or it is calls.
    """
    if value and info.data.get("add_generation_prompt"):
        raise InvalidRequestError(
            "'continue_final_message' needs add_generation_prompt: false",
            param="continue_final_message",
        )
    messages = info.data.get("messages")
    if value and messages and (messages[-1].tool_calls or messages[-1].function_call):
        raise InvalidRequestError(
            "'continue_final_message' goes on with a text; the last message ends with calls",
            param="continue_final_message",
        )
    return value


def checked_variables(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a body's `chat_template_kwargs`, for its validator.

    Raises:
        InvalidRequestError: some are what fields of the body say; names each.
    """
    problems = Problems()
    for name in _TEMPLATE_FIELDS:
        with problems:
            if name in (value or {}):
                raise InvalidRequestError(f"is what the field '{name}' says", param=f".{name}")
    problems.raise_all()
    return value


def check_truncation(num_tokens: int | None) -> None:
    """Raise InvalidRequestError if no token of the prompt would be kept; None keeps all."""
    if num_tokens == 0:
        raise InvalidRequestError(
            "'truncate_prompt_tokens' is 0; it must be >= 1, or -1 for what fits the context",
            param="truncate_prompt_tokens",
        )


def refuse(name: str, value: Any, *, hint: str = "") -> None:
    """Raise UnsupportedFieldError unless the value asks for nothing."""
    if value is not None and value is not False and value not in ("", []):
        raise UnsupportedFieldError(f"'{name}' is not supported by this server{hint}", param=name)


def check_early_stopping(value: Any) -> None:
    """Raise InvalidRequestError unless it says when a beam search ends, or is None."""
    if value is not None and not isinstance(value, bool) and value != "never":
        raise InvalidRequestError(
            f"'early_stopping' is {shorten(value)}; it must be true, false or \"never\"",
            param="early_stopping",
        )


def check_stop(stop: Any) -> None:
    """Raise InvalidRequestError unless it is a stop string, a few, or None; names all the wrong."""
    stops = [stop] if isinstance(stop, str) else stop
    if stops is None:
        return
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise InvalidRequestError(
            f"'stop' must be a string or a list of strings, not {shorten(stop)}", param="stop"
        )
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"'stop' has {len(stops)} strings; the limit is {MAX_STOP_STRINGS}", param="stop"
        )
    _check_texts("stop", stops, MAX_STOP_STRING_CHARS)


def check_bad_words(words: list[str] | None) -> None:
    """Raise InvalidRequestError unless there are only a few words; names all too long or empty."""
    words = words or []
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequestError(
            f"'bad_words' has {len(words)} words; the limit is {MAX_BAD_WORDS}", param="bad_words"
        )
    _check_texts("bad_words", words, MAX_BAD_WORD_CHARS, may_be_blank=False)


def check_dry_sequence_breakers(breakers: list[str] | None) -> None:
    """Raise InvalidRequestError unless there are only a few; names all too long or empty."""
    breakers = breakers or []
    if len(breakers) > MAX_DRY_SEQUENCE_BREAKERS:
        raise InvalidRequestError(
            f"'dry_sequence_breakers' has {len(breakers)} texts; the limit is "
            f"{MAX_DRY_SEQUENCE_BREAKERS}",
            param="dry_sequence_breakers",
        )
    _check_texts("dry_sequence_breakers", breakers, MAX_DRY_SEQUENCE_BREAKER_CHARS)


def _check_texts(
    name: str, texts: Sequence[str], max_chars: int, *, may_be_blank: bool = True
) -> None:
    """Raise one InvalidRequestError that names each text of a field that is too long or empty."""
    but = "" if may_be_blank else ", not all of them spaces"
    errors = [
        InvalidRequestError(
            f"'{name}' has {shorten(text)}, of {len(text)} characters; each must have 1 to "
            f"{max_chars}{but}",
            param=name,
        )
        for text in texts
        if not (text if may_be_blank else text.strip()) or len(text) > max_chars
    ]
    if errors:
        raise joined(errors)


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Raise InvalidRequestError unless these are a few short names and texts; names every other."""
    entries = metadata or {}
    if len(entries) > MAX_METADATA:
        raise InvalidRequestError(
            f"'metadata' has {len(entries)} entries; the limit is {MAX_METADATA}", param="metadata"
        )
    problems = Problems()
    for key, value in entries.items():
        with problems:
            _check_entry(key, value)
    problems.raise_all()


def _check_entry(key: str, value: Any) -> None:
    if len(key) > MAX_METADATA_KEY_CHARS:
        raise InvalidRequestError(
            f"'metadata' has the key {shorten(key)} of {len(key)} characters; the limit is "
            f"{MAX_METADATA_KEY_CHARS}",
            param="metadata",
        )
    if not isinstance(value, str):
        raise InvalidRequestError(
            f"'metadata.{key}' must be text, not {shorten(value)}", param=f"metadata.{key}"
        )
    if len(value) > MAX_METADATA_VALUE_CHARS:
        raise InvalidRequestError(
            f"'metadata.{key}' has {len(value)} characters; the limit is "
            f"{MAX_METADATA_VALUE_CHARS}",
            param=f"metadata.{key}",
        )


def check_logit_bias(bias: dict[str, Any] | None) -> None:
    """Raise one InvalidRequestError that lists every entry that is wrong whatever the model."""
    entries = bias or {}
    if len(entries) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(
            f"'logit_bias' has {len(entries)} entries; the limit is {MAX_LOGIT_BIAS}",
            param="logit_bias",
        )
    problems = []
    for key, value in entries.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            problems.append(f"key {shorten(key, 40)} is not a token id")
        elif not is_number or not -100 <= value <= 100:
            problems.append(f"value {shorten(value, 40)} of token {key} is not within -100 and 100")
    if problems:
        more = len(problems) - MAX_NAMED_KEYS
        listed = "; ".join(problems[:MAX_NAMED_KEYS]) + (f"; and {more} more" if more > 0 else "")
        raise InvalidRequestError(f"'logit_bias': {listed}", param="logit_bias")


def check_num_prompts(name: str, prompts: Sized, max_prompts: int) -> None:
    """Raise InvalidRequestError if a field has more prompts than this `n` leaves room for."""
    if len(prompts) > max_prompts:
        raise InvalidRequestError(
            f"'{name}' has {len(prompts)} prompts; with this n or best_of the limit is "
            f"{max_prompts}",
            param=name,
        )


def prompt_items(prompt: Any, *, param: str = "prompt") -> list[str | list[int]]:
    """Return the texts and lists of token ids that the field `param` means.

    Raises:
        InvalidRequestError: it is something else, or some are empty; names the first few.
    """
    if prompt is None:
        raise InvalidRequestError(f"'{param}': this field is required", param=param)
    if isinstance(prompt, str) or (
        isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)
    ):
        items: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt:
        items = prompt
    else:
        raise _bad_prompt(param, param, prompt)
    errors: list[InvalidRequestError] = []
    for index, item in enumerate(items):
        if (type(item) is str and item) or _is_token_list(item):
            continue
        where = param if items is not prompt else f"{param}[{index}]"
        if item in ("", []):
            errors.append(InvalidRequestError(f"'{where}' is empty", param=param))
        else:
            errors.append(_bad_prompt(param, where, item))
        if len(errors) == MAX_NAMED_PROMPTS:
            break
    if errors:
        raise joined(errors)
    return items


def _is_token_list(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int}  # bool is no int here


def _bad_prompt(param: str, where: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"'{where}' must be text, a list of token ids, or a list of either (not empty), "
        f"not {shorten(value)}",
        param=param,
    )
