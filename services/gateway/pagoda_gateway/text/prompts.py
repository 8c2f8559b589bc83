"""Prompts on their way to the engine: rendered, tokenised, hashed, off the event loop if long.

Knows no request's fields: who calls has checked them.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash

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

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            InvalidRequestError: it has none.
        """
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        return self._template

    async def chat_tokens(
        self,
        chat: Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: dict[str, Any] | None,
        add_special_tokens: bool,
    ) -> list[int]:
        """Return the token ids of a conversation; the template writes the special tokens itself."""
        template = self.template

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


def cache_salt(tenant: str) -> bytes:
    """Return what keeps one tenant's blocks apart from all others'."""
    return hashlib.blake2b(tenant.encode(), digest_size=_SALT_BYTES, person=b"pagoda.salt").digest()


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= INLINE_CHARS else await asyncio.to_thread(work)
