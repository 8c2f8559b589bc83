"""POST /v1/responses: OpenAI's newer way to ask for a chat, and what is kept of the answers."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pagoda_gateway.errors import (
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PreviousResponseError,
    StorageFullError,
    UnavailableError,
    shorten,
)
from pagoda_gateway.openai.chat import ChatProcessor
from pagoda_gateway.openai.endpoint import Endpoint, Translated
from pagoda_gateway.openai.messages import INLINE_MESSAGES
from pagoda_gateway.openai.request_processor import ProcessedRequest
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.responses.background import BackgroundResponses
from pagoda_gateway.responses.chat_messages import chat_messages
from pagoda_gateway.responses.conversations import Conversations, check_size
from pagoda_gateway.responses.event_log import EventLog
from pagoda_gateway.responses.input_items import item_page, with_ids, without_turn
from pagoda_gateway.responses.items import without_logprobs
from pagoda_gateway.responses.kept import Become, Change, Kept, ResponseStore, Value
from pagoda_gateway.responses.late_events import Found, ended_events, late_events
from pagoda_gateway.responses.references import referenced
from pagoda_gateway.responses.schemas import AS_IN_CHAT, ResponsesBody, TextFormat
from pagoda_gateway.responses.serializer import ResponseSerializer, failed
from pagoda_gateway.responses.tools import chat_choice, functions, left_out
from pagoda_gateway.responses.unkept import has_died, lost_message, unkept_response
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.served_model import ServedModel

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1.0
KEEP_SECONDS = 2.0  # that a client's last bytes wait until its answer is kept
WATCH_SECONDS = 1.0  # until what another replica has cancelled ends here
SWEEP_SECONDS = 60.0
EVENTS = "events"  # of what is kept, where a response's events are

AccountOf = Callable[[str, str], Awaitable[Mapping[Any, Any] | None]]
"""Returns the account of a tenant's response, by its id."""


class _Chat(ChatBody):
    prompt_field: ClassVar[str] = "input"
    schema_field: ClassVar[str] = "text.format.schema"

    truncation: str | None = None
    sent_places: tuple[str, ...] = ()

    @property
    def tool_places(self) -> Sequence[str]:
        """Where in the request the tools are."""
        return self.sent_places

    @property
    def drops_turns(self) -> bool:
        """Whether a conversation that is too long goes without its oldest turns."""
        return self.truncation == "auto"

    @property
    def max_tokens_field(self) -> str:
        """Name of the field that bounds the output."""
        return "max_output_tokens"


class ResponsesEndpoint(Endpoint[ResponsesBody, ChatBody]):
    """Responses in front of chat."""

    name = "responses"
    operation = "chat"
    object_id_prefix = "resp_"
    schema = ResponsesBody

    def __init__(
        self,
        chats: Mapping[str, ChatProcessor],
        store: ResponseStore,
        account_of: AccountOf,
        *,
        gateway_id: str,
        max_conversation_bytes: int,
    ) -> None:
        super().__init__(chats)
        self._chats = chats
        self._store = store
        self.conversations = Conversations(store, max_bytes=max_conversation_bytes)
        self._max_conversation_bytes = max_conversation_bytes
        self._account_of = account_of
        self._gateway_id = gateway_id
        self.background = BackgroundResponses()

    async def translate(
        self, sent: ResponsesBody, tenant: str, line_id: str = ""
    ) -> Translated[ChatBody]:
        """Return the chat that the body asks for, after the conversation that it goes on with."""
        previous = await self._previous(tenant, sent)
        if sent.conversation_id and line_id:
            previous = without_turn(previous, line_id)
        asked_items = await referenced(sent.input, previous, partial(self._found, tenant))
        items, offered = [*previous, *asked_items], functions(sent.tools)
        body = _Chat.model_construct(
            model=sent.model,
            messages=await _messages(sent.instructions, items),
            max_tokens=sent.max_output_tokens,
            stream=sent.stream,
            stream_options=sent.stream_options,
            tools=[function.in_chat for function in offered] or None,
            tool_choice=chat_choice(sent.tool_choice, sent.tools),
            sent_places=tuple(function.place for function in offered),
            response_format=_response_format(sent.text.format if sent.text else None),
            reasoning_effort=(sent.reasoning or {}).get("effort"),
            truncation=sent.truncation,
            logprobs=sent.num_logprobs is not None,
            top_logprobs=sent.num_logprobs,
            **{name: getattr(sent, name) for name in AS_IN_CHAT},
        )

        async def keep(response: dict[str, Any], log: EventLog | None) -> bool:
            name = tenant, response["id"]
            sent_items = items[len(previous) :]
            asked = with_ids(previous, sent_items, response["id"], keeps_ids=not line_id)
            new = [*asked, *map(without_logprobs, response["output"])]
            value: dict[str, Any] = {"response": response, "items": [*previous, *new]}
            if response["status"] == "queued":  # refused before it costs anything
                check_size(value["items"], self._max_conversation_bytes)
                events = {} if log is None else {EVENTS: None}
                return await self._store.put(*name, value | events, is_running=True)
            if sent.background:  # one that was cancelled or deleted meanwhile stays so
                turn = self.conversations.with_turn(sent.conversation_id, new, response["id"])
                try:
                    return await self._end(*name, lambda _: value, log, turn) is not None
                except (StorageFullError, UnavailableError):  # who asks again is told, too
                    await self._end(*name, lambda _: _became(value, store=False), log)
                    raise
            async with asyncio.timeout(KEEP_SECONDS):
                await self.conversations.go_on(tenant, sent.conversation_id, new, response["id"])
                if not response["store"]:
                    return False
                check_size(value["items"], self._max_conversation_bytes)
                return await self._store.put(*name, value)

        def serializer(processed: ProcessedRequest, generation: Generation) -> ResponseSerializer:
            tokenizer = self.processors[generation.model.name].tokenizer
            return ResponseSerializer(
                generation, processed.form, processed.options, tokenizer, sent, keep
            )

        return Translated(body, serializer, left_out(sent.tools))

    async def run_behind(
        self, tenant: str, serializer: ResponseSerializer, answer: Coroutine[Any, Any, None]
    ) -> dict[str, Any]:
        """Have `answer` write with `serializer` while nobody waits; return what is found first.

        Raises:
            UnavailableError: there is no room to keep it.
        """
        response: dict[str, Any] | None = None
        try:
            response = await serializer.queued()
        finally:
            generation = serializer.generation
            self.background.start(tenant, serializer, self._run(tenant, serializer, answer))
            if response is None or not response["store"]:
                self.background.stop(tenant, generation.identity.object_id)
        if not response["store"]:
            raise UnavailableError(
                "there is no room to keep a response until it has ended: those that run take "
                "PAGODA_GATEWAY_RESPONSE_STORE_BYTES; try again, or without 'background'",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return response

    async def _run(
        self, tenant: str, serializer: ResponseSerializer, answer: Coroutine[Any, Any, None]
    ) -> None:
        generation = serializer.generation
        try:
            await answer
        finally:  # what has not ended by now has failed
            error = generation.failure or InternalError(
                "the gateway that made it stopped or failed; its log says why"
            )
            log = serializer.log
            try:
                ended = await self._end(
                    tenant,
                    generation.identity.object_id,
                    lambda kept: _became(kept, **failed(error)),
                    log,
                )
                if log is not None and ended is not None and not log.has_ended:
                    serializer.failure_events(error)
            finally:
                if log is not None:
                    log.close()

    async def _end(
        self,
        tenant: str,
        response_id: str,
        become: Become,
        log: EventLog | None,
        also: Change | None = None,
    ) -> Value | None:
        """End one that runs, with its events where there is room for them; see `ResponseStore`."""
        if log is None:
            return await self._store.end(tenant, response_id, become, also)
        packed = await asyncio.to_thread(lambda: log.packed)
        try:
            return await self._store.end(
                tenant, response_id, lambda kept: {**become(kept), EVENTS: packed}, also
            )
        except StorageFullError:
            return await self._store.end(
                tenant, response_id, lambda kept: {**become(kept), EVENTS: None}, also
            )

    async def run(self) -> None:
        """End what others have ended, or died with, and delete what has expired: for ever."""
        swept = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.background.end_unwanted(self._store.running)
                if time.monotonic() - swept >= SWEEP_SECONDS:
                    while await self._store.sweep():
                        pass
                    for tenant, response_id in await self._store.running(anywhere=True):
                        await self._settled(tenant, response_id)
                    swept = time.monotonic()
            except (UnavailableError, StorageFullError):  # the log says so
                pass
            except Exception:  # whatever it is, such as a table that a restore has yet to make
                logger.exception("kept responses are looked at later")

    async def cancel(self, tenant: str, response_id: str) -> dict[str, Any]:
        """End a tenant's response that runs in the background; return what is found from now on.

        Raises:
            NotFoundError: see `find`.
            InvalidRequestError: it does not run in the background.
        """
        kept, _ = await self._settled(tenant, response_id)
        if kept is not None and kept.gateway_id is not None:
            ended = await self._store.end(
                tenant, response_id, lambda now: _became(now, status="cancelled")
            )
            if ended is not None:
                self.background.stop(tenant, response_id)
            kept = await self._found(tenant, response_id)
        if kept is None:
            raise self._missing(response_id)
        response: dict[str, Any] = kept.value["response"]
        if not response["background"]:
            raise InvalidRequestError(
                "Cannot cancel a synchronous response: close the connection of one that runs"
            )
        return response

    async def count_tokens(self, sent: ResponsesBody, tenant: str, model: ServedModel) -> int:
        """Return how many tokens the input has as a prompt.

        Raises:
            InvalidRequestError: an item cannot be one, or the model's template cannot render it.
            PreviousResponseError, NotFoundError: what it goes on with is not kept.
        """
        body = (await self.translate(sent, tenant)).body
        return len((await self._chats[model.name].conversation(body, model)).token_ids)

    async def find(self, tenant: str, response_id: str) -> dict[str, Any]:
        """Return a tenant's response.

        Of one that another gateway makes, or made and did not keep: whether it runs or has failed,
        as its account says.

        Raises:
            NotFoundError: it is not kept, or no longer.
            UnavailableError: the database does not answer.
        """
        kept, account = await self._settled(tenant, response_id)
        if kept is None:
            is_others = account is not None and account["gateway_id"] != self._gateway_id
            if account is None or not is_others or account["endpoint"] != self.name:
                raise self._missing(response_id)
            return unkept_response(account)
        response: dict[str, Any] = kept.value["response"]
        if kept.gateway_id is None:
            return response
        is_here = self.background.is_running(tenant, response_id)
        if not is_here or self.background.has_begun(tenant, response_id):
            response["status"] = "in_progress"
        return response

    async def events(
        self, tenant: str, response_id: str, after: int, *, keepalive_seconds: float
    ) -> AsyncIterator[bytes]:
        """Return the events of a tenant's response whose number is above `after`, as they come.

        At the gateway that makes it they come at once, at others when it has ended.

        Raises:
            NotFoundError, UnavailableError: see `find`.
            InvalidRequestError: they are not kept, or no longer.
        """
        kept = await self._kept(tenant, response_id)
        if EVENTS not in kept.value:
            raise InvalidRequestError(
                f"the events of {shorten(response_id)} are not kept: only those of a response that "
                "was asked for with 'background' and 'stream' are; ask without 'stream'",
                param="stream",
            )
        log = self.background.log_of(tenant, response_id)
        if log is not None:
            log.check(after)
            return log.read(after, keepalive_seconds=keepalive_seconds)
        if kept.gateway_id is None:
            return _all_at_once(ended_events(kept.value["response"], kept.value[EVENTS], after))

        async def find() -> Found:
            response = await self.find(tenant, response_id)
            return response, (await self._kept(tenant, response_id)).value[EVENTS]

        return late_events(find, after, look_seconds=WATCH_SECONDS)

    async def input_page(
        self,
        tenant: str,
        response_id: str,
        *,
        limit: int,
        after: str | None,
        order: Literal["asc", "desc"],
    ) -> dict[str, Any]:
        """Return some of the items that a tenant's response answers, the conversation's included.

        Raises:
            NotFoundError: see `find`.
            InvalidRequestError: see `item_page`.
        """
        kept = (await self._kept(tenant, response_id)).value
        num_items = len(kept["items"]) - len(kept["response"]["output"])
        return item_page(kept["items"][:num_items], limit=limit, after=after, order=order)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a tenant's response; those that went on with it keep its conversation.

        Raises:
            NotFoundError: see `find`.
        """
        is_one = response_id.startswith(self.object_id_prefix)
        if not is_one or not await self._store.delete(tenant, response_id):
            raise self._missing(response_id)
        self.background.stop(tenant, response_id)

    async def _previous(self, tenant: str, sent: ResponsesBody) -> list[Any]:
        """Return the items of the conversation that a body goes on with.

        Raises:
            PreviousResponseError, NotFoundError: it is not kept.
        """
        if sent.conversation_id:
            return await self.conversations.items(tenant, sent.conversation_id)
        if not sent.previous_response_id:
            return []
        kept, _ = await self._settled(tenant, sent.previous_response_id)
        if kept is None:
            raise PreviousResponseError(
                _not_kept(sent.previous_response_id), param="previous_response_id"
            )
        if kept.gateway_id is not None:
            raise InvalidRequestError(
                f"'previous_response_id' is {shorten(sent.previous_response_id)}, which has not "
                "ended; wait for its status to change",
                param="previous_response_id",
            )
        items: list[Any] = kept.value["items"]
        return items

    async def _kept(self, tenant: str, response_id: str) -> Kept:
        kept = await self._found(tenant, response_id)
        if kept is None:
            raise self._missing(response_id)
        return kept

    async def _found(self, tenant: str, response_id: str) -> Kept | None:
        """Return what is kept of a response: conversations are kept beside them."""
        is_one = response_id.startswith(self.object_id_prefix)
        return await self._store.get(tenant, response_id) if is_one else None

    async def _settled(
        self, tenant: str, response_id: str
    ) -> tuple[Kept | None, Mapping[Any, Any] | None]:
        """Return what is kept of a response, and its account if that was asked.

        What runs at a gateway that has died fails, once its account says so.
        """
        kept = await self._found(tenant, response_id)
        if self.background.is_running(tenant, response_id):
            return kept, None
        if kept is not None and kept.gateway_id is None:
            return kept, None
        account = await self._account_of(tenant, response_id)
        if account is None or not (message := lost_message(account)):
            return kept, account
        # What has ended is kept before its account is closed: it may have since we looked.
        kept = await self._found(tenant, response_id)
        if kept is not None and kept.gateway_id is not None:
            lost = failed(InternalError(message))
            if has_died(account, self._store.now()):
                await self._store.end(tenant, response_id, lambda now: _became(now, **lost))
                kept = await self._found(tenant, response_id)
            else:
                kept = Kept(_became(kept.value, **lost), None)
        return kept, account

    @staticmethod
    def _missing(response_id: str) -> NotFoundError:
        return NotFoundError(_not_kept(response_id))


def _became(kept: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return what is kept with a response that has changed."""
    return {**kept, "response": kept["response"] | changes}


def _not_kept(response_id: str) -> str:
    return (
        f"no response {shorten(response_id)} is kept: responses are for a while "
        "(PAGODA_GATEWAY_RESPONSE_STORE_SECONDS, _BYTES), unless store is false. Send the "
        "whole conversation as input."
    )


async def _messages(instructions: str | None, items: Sequence[dict[str, Any]]) -> list[Message]:
    """Return items as a chat's messages; many are made off the event loop."""
    if len(items) <= INLINE_MESSAGES:
        return chat_messages(instructions, items)
    return await asyncio.to_thread(chat_messages, instructions, items)


async def _all_at_once(events: bytes) -> AsyncIterator[bytes]:
    yield events


def _response_format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    return {"type": form.type, "json_schema": {"schema": form.schema_}}
