"""Prompts on their way to the engine: rendered, tokenised, hashed, off the event loop if long.

Knows no request's fields: who calls has checked them.
"""

import asyncio
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from pagoda_gateway.errors import ContextLengthError, InvalidRequestError
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.bad_words import bad_word_tokens
from pagoda_gateway.text.sequence_breakers import SequenceBreakers
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash

# Work on texts above this size leaves the event loop; below it a thread costs more than it saves.
INLINE_CHARS = 4096
LARGE_CHARS = 1 << 18
MAX_LARGE = 2  # so many large ones at a time: each takes a core, and a hundred times its memory
PIECE_IDS = 4096  # written out before others have their turn
END_CHARS = 64
_SALT_BYTES = 16

T = TypeVar("T")


def large_places() -> asyncio.Semaphore:
    """Return the places for large work of one process, whatever the number of its models."""
    return asyncio.Semaphore(MAX_LARGE)


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


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """A conversation as tokens, and the end of its text, which the output goes on from."""

    token_ids: list[int]
    text_end: str


class PromptMaker:
    """Renders, tokenises and hashes for one model, off the event loop where that takes long.

    Attributes:
        tokenizer: the model's.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        template: ChatTemplate | None,
        large: asyncio.Semaphore | None = None,
    ) -> None:
        """Use a model's tokenizer and template; a process's makers share `large`, its places."""
        self.tokenizer = tokenizer
        self._template = template
        self._large = large or large_places()
        self._breakers = SequenceBreakers(tokenizer)

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
        model: ServedModel,
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: dict[str, Any] | None,
        add_special_tokens: bool,
    ) -> ChatTokens:
        """Return the tokens of a conversation; the template writes the special tokens itself.

        Raises:
            InvalidRequestError: the template refuses it, or it is longer than the context can be.
        """
        template = self.template.with_tools if tools else self.template

        def make() -> ChatTokens:
            text = template.render(
                chat,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
            )
            self._check_chars(text, model, param="messages")
            token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return ChatTokens(token_ids, text[-END_CHARS:])

        # Whatever the template may write out, tools and variables too.
        size = len(orjson.dumps([chat, tools, variables]))
        return await self._off_loop(size, make)

    async def text_tokens(
        self,
        texts: Sequence[str],
        model: ServedModel,
        *,
        add_special_tokens: bool,
        param: str = "prompt",
    ) -> list[list[int]]:
        """Return the token ids of each plain text.

        Raises:
            ContextLengthError: a text is longer than the model's context can be.
        """
        for text in texts:
            self._check_chars(text, model, param=param)
        return await self._off_loop(
            sum(map(len, texts)),
            lambda: self.tokenizer.encode_all(texts, add_special_tokens=add_special_tokens),
        )

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return await self._off_loop(
            len(token_ids), lambda: self.tokenizer.decode(token_ids, skip_special_tokens=False)
        )

    async def bad_word_tokens(self, words: Sequence[str], model: ServedModel) -> list[list[int]]:
        """Return the tokens that would spell words, in each way; see `text.bad_words`.

        What has a token that the model has not cannot come anyway.
        """
        spelled = await self._off_loop(
            sum(map(len, words)), lambda: bad_word_tokens(self.tokenizer, words)
        )
        return [token_ids for token_ids in spelled if max(token_ids, default=0) < model.vocab_size]

    async def breaker_tokens(self, breakers: tuple[str, ...], model: ServedModel) -> Sequence[int]:
        """Return the tokens that hold one of the texts; see `text.sequence_breakers`.

        Raises:
            InvalidRequestError: they are too many.
        """
        return await self._off_loop(
            self.tokenizer.vocab_size, lambda: self._breakers.token_ids(breakers, model.vocab_size)
        )

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token's own text, made a piece at a time."""
        texts: list[str] = []
        for start in range(0, len(token_ids), PIECE_IDS):
            texts += map(self.tokenizer.token_text, token_ids[start : start + PIECE_IDS])
            await asyncio.sleep(0)
        return texts

    async def finish(
        self,
        token_ids: Sequence[int],
        text: str | None,
        model: ServedModel,
        tenant: str,
        *,
        own_salt: str = "",
    ) -> Prompt:
        """Hash the blocks of a prompt that has passed its checks.

        Args:
            token_ids: what the model sees.
            text: if it is known.
            model: whose blocks they are.
            tenant: only its own prompts share blocks.
            own_salt: of them, only those with the same one.
        """
        salt = cache_salt(tenant, own_salt)
        root = block_hash.cache_root(
            kv_identity=model.kv_identity,
            cache_salt=salt,
            adapter=model.adapter_digest.hex(),
        )
        hashes = await self._off_loop(
            len(token_ids), lambda: block_hash.hash_prompt(root, token_ids, model.block_size)
        )
        return Prompt(tuple(token_ids), text, root, hashes)

    def _check_chars(self, text: str, model: ServedModel, *, param: str) -> None:
        """Refuse what no tokenising could fit into the context, before any is done."""
        limit = model.max_model_len * self.tokenizer.max_token_chars
        if len(text) > limit:
            raise ContextLengthError(
                f"This model's maximum context length is {model.max_model_len} tokens, and a "
                f"prompt of {len(text)} characters has more: {limit} characters are the most that "
                "could fit. Shorten the prompt.",
                param=param,
                limit=model.max_model_len,
            )

    async def _off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Do `work` here if it is small, else in a thread; a few large ones at a time."""
        if size <= INLINE_CHARS:
            return work()
        if size <= LARGE_CHARS:
            return await asyncio.to_thread(work)
        async with self._large:
            return await asyncio.to_thread(work)


@functools.lru_cache(maxsize=1024)
def cache_salt(tenant: str, own_salt: str = "") -> bytes:
    """Return what keeps a tenant's blocks apart from all others', and each of its own salts'."""
    salt = hashlib.blake2b(tenant.encode(), digest_size=_SALT_BYTES, person=b"pagoda.salt").digest()
    if not own_salt:
        return salt
    return hashlib.blake2b(
        own_salt.encode(), key=salt, digest_size=_SALT_BYTES, person=b"pagoda.own.salt"
    ).digest()
