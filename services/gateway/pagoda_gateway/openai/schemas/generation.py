"""Fields that chat and completions share."""

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas import beam_search, checks, formats
from pagoda_gateway.openai.schemas.base import (
    BadWords,
    EarlyStopping,
    Items,
    LogitBias,
    Metadata,
    Priority,
    PromptTruncation,
    Refused,
    RequestBody,
    RequestModel,
    ResponseFormat,
    Seed,
    SequenceBreakers,
    Stops,
)

MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 128
MAX_CACHE_SALT_CHARS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_ALLOWED_TOKEN_IDS = 16_384
MAX_DRY_LENGTH = 50  # what workers count
MAX_PATTERN_SIZE = 128
MAX_PATTERN_COUNT = 1024
MAX_LENGTH_PENALTY = 10  # either way; what workers take


class StreamOptions(RequestModel):
    """What else a stream carries."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_receipt: bool | None = Field(
        None, description="The last event before [DONE] has the request's receipt (Pagoda's own)."
    )


class RepetitionDetection(RequestModel):
    """What ends an output that says the same again and again; vLLM's."""

    max_pattern_size: int = Field(0, ge=0, le=MAX_PATTERN_SIZE, description="Tokens; 0: off.")
    min_pattern_size: int = Field(0, ge=0, le=MAX_PATTERN_SIZE, description="0 is 1.")
    min_count: int = Field(0, ge=0, le=MAX_PATTERN_COUNT)

    @model_validator(mode="after")
    def _check(self) -> "RepetitionDetection":
        where = "repetition_detection"
        if self.max_pattern_size and self.min_count < 2:
            raise InvalidRequestError(
                f"'{where}.min_count' is {self.min_count}; it must be 2 or more",
                param=f"{where}.min_count",
            )
        if self.min_pattern_size > self.max_pattern_size:
            raise InvalidRequestError(
                f"'{where}.min_pattern_size' is {self.min_pattern_size}; it must be <= "
                f"max_pattern_size {self.max_pattern_size}",
                param=f"{where}.min_pattern_size",
            )
        return self


class GenerationBody(RequestBody):
    """How to generate: everything but the prompt.

    Attributes:
        prompt_field: name of the field that has the prompt.
        schema_field: name of the field that has the schema of `response_format`.
    """

    prompt_field: ClassVar[str] = "prompt"
    schema_field: ClassVar[str] = formats.RESPONSE_SCHEMA

    model: str = Field(min_length=1, max_length=512)
    use_beam_search: bool | None = None  # before what it goes with: that looks at it
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    top_n_sigma: float | None = Field(None, ge=-1, le=100)
    typical_p: float | None = Field(None, gt=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=1)
    xtc_probability: float | None = Field(None, ge=0, le=1)
    dry_multiplier: float | None = Field(None, ge=0, le=100)
    dry_base: float | None = Field(None, ge=1, le=100)
    dry_allowed_length: int | None = Field(None, ge=1, le=MAX_DRY_LENGTH)
    dry_sequence_breakers: SequenceBreakers | None = None
    lz_penalty: float | None = Field(None, ge=0, le=2)
    logit_bias: LogitBias | None = None
    seed: Seed = None
    stop: Stops = None
    stop_token_ids: Items[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    repetition_detection: RepetitionDetection | None = None
    allowed_token_ids: Items[int] | None = Field(
        None, min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS
    )
    bad_words: BadWords | None = None
    truncate_prompt_tokens: PromptTruncation = None
    truncation_side: Literal["left", "right"] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    logprob_token_ids: Items[int] | None = Field(None, max_length=MAX_LOGPROB_TOKEN_IDS)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    regex: Any = None
    ebnf: Any = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    priority: Priority = None
    length_penalty: float | None = Field(None, ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)
    early_stopping: EarlyStopping = None
    user: str | None = None
    metadata: Metadata | None = None
    reasoning_effort: str | None = None  # what a chat template makes of it
    # Known, and without effect here.
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: str | None = None
    # Known, and refused when set.
    logits_processors: Refused = None
    moderation: Refused = None

    @property
    def max_tokens_field(self) -> str:
        """Name of the field that bounds the output."""
        return "max_tokens"

    @field_validator("n")
    @classmethod
    def _check_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.context is not None:
            checks.check_n(value, info.context["max_n"])
            if info.data.get("use_beam_search"):
                beam_search.check_width("n", value, info.context["max_beam_width"])
        return value

    @field_validator(*beam_search.OFF, *beam_search.ABSENT)
    @classmethod
    def _check_beside_search(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("use_beam_search"):
            beam_search.check_beside(info.field_name or "", value)
        return value

    @field_validator("stream_options")
    @classmethod
    def _check_stream_options(
        cls, value: StreamOptions | None, info: ValidationInfo
    ) -> StreamOptions | None:
        if value is not None and not info.data.get("stream", True):  # not there: wrong itself
            raise InvalidRequestError(
                "'stream_options' is only allowed with stream: true", param="stream_options"
            )
        return value

    @field_validator("prompt_logprobs")
    @classmethod
    def _check_prompt_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("stream"):
            raise InvalidRequestError(
                "'prompt_logprobs' is only allowed without stream: true", param="prompt_logprobs"
            )
        if info.data.get("use_beam_search"):
            beam_search.check_scored_logprobs("prompt_logprobs", value)
        return value

    @field_validator("min_tokens")
    @classmethod
    def _check_min_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        checks.check_min_tokens(value, info.data.get("max_tokens"), "max_tokens")
        return value

    @field_validator(*formats.FIELDS)
    @classmethod
    def _check_format(cls, value: Any, info: ValidationInfo) -> Any:
        formats.wanted(info.field_name or "", value)
        return value
