"""The `prompt` field of a completion: text, token ids, or a list of either."""

from typing import Any

from pagoda_gateway.errors import ContextLengthError, InvalidRequestError, shorten
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker


async def completion_prompts(
    maker: PromptMaker,
    prompt: Any,
    model: ServedModel,
    *,
    max_prompts: int,
    add_special_tokens: bool,
    needs_text: bool,
) -> list[tuple[list[int], str | None]]:
    """Return (token ids, text) of each prompt in the body's `prompt`.

    Raises:
        InvalidRequestError: too many, too long or no prompts; before anything is tokenised.
    """
    items = _split_prompts(prompt, model, max_prompts)
    texts = [item for item in items if isinstance(item, str)]
    tokens = iter(
        await maker.text_tokens(texts, model, add_special_tokens=add_special_tokens)
        if texts
        else ()
    )
    result: list[tuple[list[int], str | None]] = []
    for item in items:
        if isinstance(item, str):
            result.append((next(tokens), item))
        else:
            model.check_token_ids(item, param="prompt")
            result.append((item, await maker.text_of(item) if needs_text else None))
    return result


def _split_prompts(prompt: Any, model: ServedModel, max_prompts: int) -> list[str | list[int]]:
    if prompt is None:
        raise InvalidRequestError("'prompt': this field is required", param="prompt")
    if isinstance(prompt, str) or (
        isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)
    ):
        items: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt:
        items = prompt
    else:
        raise _bad_prompt("prompt", prompt)
    if len(items) > max_prompts:
        raise InvalidRequestError(
            f"'prompt' has {len(items)} prompts; with this n the limit is {max_prompts}",
            param="prompt",
        )
    for index, item in enumerate(items):
        where = "prompt" if items is not prompt else f"prompt[{index}]"
        if isinstance(item, list) and len(item) >= model.max_model_len:
            raise ContextLengthError(
                f"This model's maximum context length is {model.max_model_len} tokens, and "
                f"'{where}' has {len(item)}. Shorten the prompt.",
                param="prompt",
            )
        if not (isinstance(item, str) or _is_token_list(item)):
            raise _bad_prompt(where, item)
        if not item:
            raise InvalidRequestError(f"'{where}' is empty", param="prompt")
    return items


def _is_token_list(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int}  # bool is no int here


def _bad_prompt(where: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"'{where}' must be text, a list of token ids, or a list of either (not empty), "
        f"not {shorten(value)}",
        param="prompt",
    )
