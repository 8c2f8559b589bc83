"""Body and answer of POST /v1/embeddings."""

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas import checks
from pagoda_gateway.openai.schemas.base import Priority, Prompts, PromptTruncation, RequestBody
from pagoda_gateway.openai.schemas.generation import MAX_CACHE_SALT_CHARS

MAX_INPUTS = 2048


class EmbeddingsBody(RequestBody):
    """One input or several, as text or token ids."""

    model: str = Field(min_length=1, max_length=512)
    input: Prompts  # after its check: a list of texts and lists of token ids
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    truncate_prompt_tokens: PromptTruncation = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    priority: Priority = None
    user: str | None = None

    @field_validator("input")
    @classmethod
    def _check_input(cls, value: Any) -> list[str | list[int]]:
        items = checks.prompt_items(value, param="input")
        if len(items) > MAX_INPUTS:
            raise InvalidRequestError(
                f"'input' has {len(items)} inputs; the limit is {MAX_INPUTS}", param="input"
            )
        return items


class Embedding(BaseModel):
    """Of one input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(
        description="Of length 1. With encoding_format base64: float32, little endian."
    )


class EmbeddingUsage(BaseModel):
    """Tokens of all inputs, twice."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The answer to an EmbeddingsBody, in the order of its inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
