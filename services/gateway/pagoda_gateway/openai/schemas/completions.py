"""Body of POST /v1/completions."""

from typing import Any

from pydantic import Field

from pagoda_gateway.openai.schemas.generation import MAX_LOGPROBS, GenerationBody


class CompletionBody(GenerationBody):
    """One prompt or several, as text or token ids."""

    prompt: Any = None  # text, token ids, or a list of either; checked by `completion_prompts`
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None
