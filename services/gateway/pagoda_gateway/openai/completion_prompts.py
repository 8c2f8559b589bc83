"""The `prompt` field of a completion: text, token ids, or a list of either."""

from typing import Any

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker
from pagoda_gateway.text.tokenizer import ModelTokenizer


async def completion_prompts(
    maker: PromptMaker,
    tokenizer: ModelTokenizer,
    prompt: Any,
    model: ServedModel,
    *,
    add_special_tokens: bool,
    needs_text: bool,
) -> list[tuple[list[int], str | None]]:
    """Return (token ids, text) of each prompt in the body's `prompt`."""
    result: list[tuple[list[int], str | None]] = []
    for item in _split_prompts(prompt):
        if isinstance(item, str):
            ids = await maker.text_tokens(item, add_special_tokens=add_special_tokens)
            result.append((ids, item))
            continue
        model.check_token_ids(item, param="prompt")
        text = tokenizer.decode(item, skip_special_tokens=False) if needs_text else None
        result.append((item, text))
    return result


def _split_prompts(prompt: Any) -> list[str | list[int]]:
    if prompt is None:
        raise InvalidRequestError("'prompt': this field is required", param="prompt")
    if isinstance(prompt, str):
        items: list[Any] = [prompt]
    elif _is_token_list(prompt):
        items = [prompt]
    elif isinstance(prompt, list) and prompt:
        items = prompt
    else:
        raise _bad_prompt("prompt", prompt)
    for index, item in enumerate(items):
        where = "prompt" if items is not prompt else f"prompt[{index}]"
        if not (isinstance(item, str) or _is_token_list(item)):
            raise _bad_prompt(where, item)
        if not item:
            raise InvalidRequestError(f"'{where}' is empty", param="prompt")
    return items


def _is_token_list(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )


def _bad_prompt(where: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"'{where}' must be text, a list of token ids, or a list of either (not empty), "
        f"not {shorten(value)}",
        param="prompt",
    )
