"""From messages or prompts to token ids and block hashes: what a request starts from."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.chat import Message
from pagoda_gateway.openai.validation import check_token_ids
from pagoda_gateway.sequences.catalog import ServedModel
from pagoda_gateway.text.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
# Work on texts above this size leaves the event loop; below it a thread costs more than it saves.
INLINE_CHARS = 8192
_SALT_BYTES = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready to run.

    Attributes:
        token_ids: what the model sees.
        text: for echo; None if only token ids are known.
        cache_root: parent hash of the first block.
        block_hashes: one for each full block.
    """

    token_ids: tuple[int, ...]
    text: str | None
    cache_root: bytes
    block_hashes: tuple[bytes, ...]


class PromptMaker:
    """Renders, tokenises and hashes, off the event loop where that takes long."""

    def __init__(self, tokenizer: ModelTokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    async def chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: dict[str, Any] | None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Return the token ids of a conversation; the template writes the special tokens itself."""
        template = self._template
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "'continue_final_message' needs add_generation_prompt: false",
                param="continue_final_message",
            )
        chat = [self._message(i, message) for i, message in enumerate(messages)]

        def make() -> list[int]:
            text = template.render(
                chat,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
            )
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

        return await _off_loop(sum(len(m["content"] or "") for m in chat), make)

    async def text_tokens(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a plain text."""
        return await _off_loop(
            len(text), lambda: self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )

    async def finish(
        self, token_ids: Sequence[int], text: str | None, model: ServedModel, tenant: str
    ) -> Prompt:
        """Hash the blocks of a prompt that has passed its checks."""
        root = block_hash.cache_root(kv_identity=model.kv_identity, cache_salt=cache_salt(tenant))
        hashes = await _off_loop(
            len(token_ids), lambda: block_hash.hash_prompt(root, token_ids, model.block_size)
        )
        return Prompt(tuple(token_ids), text, root, hashes)

    def _message(self, index: int, message: Message) -> dict[str, Any]:
        """Return what the template sees of one message."""
        where = f"messages[{index}]"
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"'{where}.role' is {shorten(message.role)}; it must be one of {', '.join(ROLES)}",
                param=f"{where}.role",
            )
        role = message.role
        if role == "developer" and self._template and not self._template.knows_developer:
            role = "system"  # OpenAI's newer word for it
        seen: dict[str, Any] = {"role": role, "content": _content_text(where, message)}
        for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
            value = getattr(message, name)
            if value is not None:
                seen[name] = value
        return seen


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
        check_token_ids(item, model, param="prompt")
        text = tokenizer.decode(item, skip_special_tokens=False) if needs_text else None
        result.append((item, text))
    return result


def cache_salt(tenant: str) -> bytes:
    """Return what keeps one tenant's blocks apart from all others'."""
    return hashlib.blake2b(tenant.encode(), digest_size=_SALT_BYTES, person=b"pagoda.salt").digest()


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


def _content_text(where: str, message: Message) -> str | None:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return None  # as the reference: templates test `content is none`
        raise InvalidRequestError(
            f"'{where}.content': this field is required", param=f"{where}.content"
        )
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"'{where}.content' must be text or a list of parts, not {shorten(content)}",
            param=f"{where}.content",
        )
    return "\n".join(_part_text(f"{where}.content[{i}]", part) for i, part in enumerate(content))


def _part_text(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind == "text" and isinstance(text, str):
        return text
    raise InvalidRequestError(
        f"'{where}' has type {shorten(kind)}; this model takes only text parts "
        '{"type": "text", "text": "..."}',
        param=where,
    )


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= INLINE_CHARS else await asyncio.to_thread(work)
