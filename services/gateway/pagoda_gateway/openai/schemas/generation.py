"""Fields that chat and completions share."""

from typing import Any

from pydantic import Field

from pagoda_gateway.openai.schemas.base import Bias, Items, RequestModel, Texts

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 4
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 4096


class StreamOptions(RequestModel):
    """What else a stream carries."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(RequestModel):
    """Only text for now; anything else is refused by name."""

    type: str


class GenerationBody(RequestModel):
    """How to generate: everything but the prompt."""

    model: str = Field(min_length=1, max_length=512)
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
    logit_bias: dict[str, Bias] | None = None  # checked against the vocabulary, all keys at once
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: Texts = None
    stop_token_ids: Items[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    # Known, and refused when set: ignoring them would change what the client gets.
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    allowed_token_ids: Items[int] | None = None
    logprob_token_ids: Items[int] | None = None
    bad_words: Items[str] | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


REFUSED_FIELDS = (
    "prompt_logprobs", "use_beam_search", "allowed_token_ids", "logprob_token_ids", "bad_words",
    "truncate_prompt_tokens", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar",
)  # fmt: skip
