"""Prompts cut to what fits: `truncate_prompt_tokens` and `truncation_side`, vLLM's extensions."""

from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.served_model import ServedModel


def truncated(
    token_ids: list[int], body: GenerationBody, model: ServedModel, *, num_reserved: int | None
) -> list[int]:
    """Return as many of a prompt's tokens as the body lets it keep; all if it says nothing.

    Args:
        token_ids: of the whole prompt.
        body: which end is kept (the last tokens unless it says otherwise), and how much of it.
        model: -1 means what its context has room for.
        num_reserved: that leaves room for so much output; None: for one token.
    """
    limit = body.truncate_prompt_tokens
    if limit is None:
        return token_ids
    if limit == -1:
        limit = max(1, model.max_model_len - max(1, num_reserved or 0))
    return token_ids[:limit] if body.truncation_side == "right" else token_ids[-limit:]
