"""Body of POST /v1/completions."""

from pydantic import ConfigDict, Field

from pagoda_gateway.openai.schemas.base import Prompts
from pagoda_gateway.openai.schemas.generation import MAX_LOGPROBS, GenerationBody


class CompletionBody(GenerationBody):
    """One prompt or several, as text or token ids."""

    model_config = ConfigDict(json_schema_extra={"required": ["model", "prompt"]})

    prompt: Prompts = None  # required, see `completion_prompts`
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None
