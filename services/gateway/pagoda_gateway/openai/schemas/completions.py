"""Body of POST /v1/completions."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas import beam_search, checks
from pagoda_gateway.openai.schemas.base import Prompts, Refused
from pagoda_gateway.openai.schemas.generation import MAX_LOGPROBS, GenerationBody


class CompletionBody(GenerationBody):
    """One prompt or several, as text or token ids."""

    prompt: Prompts  # after its check: a list of texts and lists of token ids
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = Field(None, validate_default=True)  # after what its check looks at
    best_of: int | None = Field(None, ge=1, validate_default=True)  # so is this
    suffix: Refused = None
    prompt_embeds: Refused = None

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: Any) -> list[str | list[int]]:
        return checks.prompt_items(value)

    @field_validator("max_tokens")
    @classmethod
    def _check_max_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value == 0 and info.data.get("use_beam_search"):
            raise InvalidRequestError(
                "'max_tokens' is 0; with use_beam_search it must be >= 1", param="max_tokens"
            )
        return value

    @field_validator("echo")
    @classmethod
    def _check_echo(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("use_beam_search"):
            beam_search.check_scored_logprobs("logprobs", info.data.get("logprobs"))
        scored = value or info.data.get("prompt_logprobs", 0) is not None  # not there: wrong itself
        if info.data.get("max_tokens") == 0 and not scored:
            raise InvalidRequestError(
                "'max_tokens' is 0; it must be >= 1 unless 'echo' or 'prompt_logprobs' asks for "
                "the prompt alone",
                param="max_tokens",
            )
        return value

    @field_validator("best_of")
    @classmethod
    def _check_best_of(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.context is not None and info.data.get("use_beam_search"):
            beam_search.check_width("best_of", value, info.context["max_beam_width"])
        if "n" not in info.data:  # it is wrong itself
            return value
        num_choices = info.data["n"] or 1
        if info.context is not None:
            most = info.context["max_sequences"] // max(value or 1, num_choices)
            checks.check_num_prompts("prompt", info.data.get("prompt", ()), max(1, most))
        if value is None:
            return value
        if value < num_choices:
            raise InvalidRequestError(
                f"'best_of' is {value}; it must be >= n {num_choices}", param="best_of"
            )
        if value > num_choices and info.data.get("stream"):
            raise InvalidRequestError(
                f"'best_of' is {value}; above n {num_choices} it is only allowed without stream: "
                "true, as the best are known at the end",
                param="best_of",
            )
        return value
