"""The prompts of a completion or the inputs of embeddings, each text or token ids, as token ids."""

from pagoda_gateway.errors import ContextLengthError
from pagoda_gateway.openai.schemas.checks import check_num_prompts
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.openai.truncation import truncated
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker


async def completion_prompts(
    maker: PromptMaker,
    body: CompletionBody,
    model: ServedModel,
    *,
    max_prompts: int,
    default_max_tokens: int | None,
) -> tuple[list[tuple[list[int], str | None]], list[list[int]]]:
    """Return (token ids, text) of each of a body's prompts, and the token ids of those cut short.

    A text that nobody needs may be None.

    Raises:
        InvalidRequestError: they are too many or too long; before anything is tokenised.
    """
    items: list[str | list[int]] = body.prompt
    _check_size(body, model, max_prompts)
    texts = [item for item in items if isinstance(item, str)]
    tokens = iter(
        await maker.text_tokens(
            texts,
            model,
            add_special_tokens=body.add_special_tokens is not False,
            param=body.prompt_field,
        )
        if texts
        else ()
    )
    num_reserved = default_max_tokens if body.max_tokens is None else body.max_tokens
    result: list[tuple[list[int], str | None]] = []
    cut: list[list[int]] = []
    for item in items:
        text = item if isinstance(item, str) else None
        token_ids = next(tokens) if isinstance(item, str) else item
        if text is None:
            model.check_token_ids(token_ids, param=body.prompt_field)
        kept = truncated(token_ids, body, model, num_reserved=num_reserved)
        is_cut = len(kept) < len(token_ids)
        if is_cut:
            cut.append(kept)
        if body.echo and (text is None or is_cut):
            text = await maker.text_of(kept)
        result.append((kept, text))
    return result, cut


def _check_size(body: CompletionBody, model: ServedModel, max_prompts: int) -> None:
    items, param = body.prompt, body.prompt_field
    is_truncated = body.truncate_prompt_tokens is not None
    check_num_prompts(param, items, max_prompts)
    for index, item in enumerate(items):
        if isinstance(item, list) and len(item) >= model.max_model_len and not is_truncated:
            where = param if len(items) == 1 else f"{param}[{index}]"
            raise ContextLengthError(
                f"This model's maximum context length is {model.max_model_len} tokens, and "
                f"'{where}' has {len(item)}. Shorten the prompt.",
                param=param,
                limit=model.max_model_len,
                num_prompt_tokens=len(item),
            )
