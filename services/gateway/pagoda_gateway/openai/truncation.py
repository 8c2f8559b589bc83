"""Prompts cut to what fits: the tokens of any, the turns of a conversation.

`truncate_prompt_tokens` and `truncation_side` are vLLM's; `truncation: auto` is that of Responses.
"""

from collections.abc import Awaitable, Callable, Sequence

from pagoda_gateway.errors import ContextLengthError
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import ChatTokens

_INSTRUCTIONS = ("system", "developer")


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


async def fitting_conversation(
    messages: Sequence[Message],
    tokens_of: Callable[[Sequence[Message]], Awaitable[ChatTokens]],
    max_tokens: int,
) -> ChatTokens:
    """Return the tokens of a conversation without as few of its oldest turns as it takes to fit.

    A turn begins with what a user says and goes up to the next one, so that calls and results
    stay together. Instructions that come first stay, and so does the last turn: what is still too
    long then is for the caller to refuse. Asks for tokens a few times, even of many turns.

    Args:
        messages: all of them.
        tokens_of: makes tokens of some; refuses at once what are too many messages for a context.
        max_tokens: that fit.

    Raises:
        InvalidRequestError: what `tokens_of` raises, but for what is too long and not the last.
    """
    num_kept = next(
        (i for i, message in enumerate(messages) if message.role not in _INSTRUCTIONS),
        len(messages),
    )
    turns = [i for i, message in enumerate(messages) if message.role == "user" and i > num_kept]
    begins = [num_kept, *turns]

    async def from_turn(index: int) -> ChatTokens | None:
        kept = [*messages[:num_kept], *messages[begins[index] :]]
        try:
            chat = await tokens_of(kept)
        except ContextLengthError:
            if index == len(begins) - 1:
                raise
            return None
        fits = len(chat.token_ids) <= max_tokens or index == len(begins) - 1
        return chat if fits else None

    if (chat := await from_turn(0)) is not None:
        return chat
    too_many, enough = 0, len(begins) - 1
    chat = await from_turn(enough)
    while enough - too_many > 1:
        middle = (too_many + enough) // 2
        found = await from_turn(middle)
        if found is None:
            too_many = middle
        else:
            enough, chat = middle, found
    assert chat is not None, "the last turn is always there"
    return chat
