"""Conversations: items that responses go on with and add to, kept for their tenant."""

from collections.abc import Sequence
from typing import Any

import orjson

from pagoda_gateway.errors import NotFoundError, StorageFullError, shorten
from pagoda_gateway.responses.input_items import listed, with_ids, without_turn
from pagoda_gateway.responses.kept import Become, Change, ResponseStore, Value
from pagoda_runtime.identity import new_ulid

PREFIX = "conv_"
MAX_KEPT_ITEMS = 10_000

Item = dict[str, Any]


class Conversations:
    """What is kept of each: the conversation as the API has it, and its items."""

    def __init__(self, store: ResponseStore, *, max_bytes: int) -> None:
        """Keep in `store`.

        Args:
            store: of all tenants.
            max_bytes: of one conversation's items: each change reads and writes all of them.
        """
        self._store = store
        self._max_bytes = max_bytes

    async def create(
        self, tenant: str, items: Sequence[Item], metadata: dict[str, str]
    ) -> dict[str, Any]:
        """Begin a conversation with some items; return it.

        Raises:
            StorageFullError: there is no room to keep it, or it is too large.
        """
        conversation_id = f"{PREFIX}{new_ulid()}"
        conversation = {
            "id": conversation_id,
            "object": "conversation",
            "created_at": int(self._store.now()),
            "metadata": metadata,
        }
        kept = with_ids([], items, new_ulid())
        check_size(kept, self._max_bytes)
        value = {"conversation": conversation, "items": kept}
        if not await self._store.put(tenant, conversation_id, value):
            raise StorageFullError(
                "there is no room to keep a conversation: those of all tenants, and their "
                "responses, take PAGODA_GATEWAY_RESPONSE_STORE_BYTES at most"
            )
        return conversation

    async def find(self, tenant: str, conversation_id: str) -> dict[str, Any]:
        """Return a tenant's conversation.

        Raises:
            NotFoundError: it is not kept, or no longer.
        """
        conversation: dict[str, Any] = (await self._kept(tenant, conversation_id))["conversation"]
        return conversation

    async def update(
        self, tenant: str, conversation_id: str, metadata: dict[str, str]
    ) -> dict[str, Any]:
        """Put `metadata` in place of what it had; return the conversation.

        Raises:
            NotFoundError: see `find`.
        """

        def updated(value: Value) -> Value:
            return {**value, "conversation": value["conversation"] | {"metadata": metadata}}

        value = await self._change(tenant, conversation_id, updated)
        conversation: dict[str, Any] = value["conversation"]
        return conversation

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Forget a conversation and its items; responses that went on with it stay.

        Raises:
            NotFoundError: see `find`.
        """
        is_one = conversation_id.startswith(PREFIX)
        if not is_one or not await self._store.delete(tenant, conversation_id):
            raise _missing(conversation_id)

    async def items(self, tenant: str, conversation_id: str) -> list[Item]:
        """Return a conversation's items, the oldest first.

        Raises:
            NotFoundError: see `find`.
        """
        items: list[Item] = (await self._kept(tenant, conversation_id))["items"]
        return items

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> Item:
        """Return one of its items as the API lists it.

        Raises:
            NotFoundError: there is no such item, or see `find`.
        """
        for item in await self.items(tenant, conversation_id):
            if item["id"] == item_id:
                return listed(item)
        raise _missing_item(item_id)

    async def add(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> list[Item]:
        """Add what a client sends; return it with ids.

        Raises:
            StorageFullError: there would be too many, or they would be too large.
            NotFoundError: see `find`.
        """
        longer = _longer_by(items, new_ulid(), self._max_bytes)
        value = await self._change(tenant, conversation_id, longer)
        added: list[Item] = value["items"][-len(items) :]
        return added

    async def go_on(
        self, tenant: str, conversation_id: str | None, items: Sequence[Item], response_id: str
    ) -> None:
        """Add what a response was asked and answered, if its conversation is still there.

        Raises:
            StorageFullError: there would be too many, or they would be too large.
        """
        turn = self.with_turn(conversation_id, items, response_id)
        if turn is not None:
            await self._store.change(tenant, *turn)

    def with_turn(
        self, conversation_id: str | None, items: Sequence[Item], response_id: str
    ) -> Change | None:
        """Return the conversation's id and what adds such a turn, as the store takes it.

        What the response has added before, when it ran under a gateway that was killed, goes.
        """
        if conversation_id is None:
            return None
        longer = _longer_by(items, response_id, self._max_bytes)

        def longer_once(value: Value) -> Value:
            return longer({**value, "items": without_turn(value["items"], response_id)})

        return conversation_id, longer_once

    async def remove(self, tenant: str, conversation_id: str, item_id: str) -> dict[str, Any]:
        """Delete one of its items; return the conversation.

        Raises:
            NotFoundError: there is no such item, or see `find`.
        """

        def shorter(value: Value) -> Value:
            left = [item for item in value["items"] if item["id"] != item_id]
            if len(left) == len(value["items"]):
                raise _missing_item(item_id)
            return {**value, "items": left}

        value = await self._change(tenant, conversation_id, shorter)
        conversation: dict[str, Any] = value["conversation"]
        return conversation

    async def _kept(self, tenant: str, conversation_id: str) -> Value:
        is_one = conversation_id.startswith(PREFIX)
        kept = await self._store.get(tenant, conversation_id) if is_one else None
        if kept is None:
            raise _missing(conversation_id)
        return kept.value

    async def _change(self, tenant: str, conversation_id: str, become: Become) -> Value:
        is_one = conversation_id.startswith(PREFIX)
        value = await self._store.change(tenant, conversation_id, become) if is_one else None
        if value is None:
            raise _missing(conversation_id)
        return value


def check_size(items: Sequence[Item], max_bytes: int) -> None:
    """Refuse items that are too large to be kept as one conversation.

    Raises:
        StorageFullError: says how large they are, and the limit.
    """
    num_bytes = len(orjson.dumps(items))
    if num_bytes > max_bytes:
        raise StorageFullError(
            f"the conversation would take {num_bytes} bytes; the limit is {max_bytes}, as of one "
            "body (PAGODA_GATEWAY_MAX_BODY_BYTES). Delete some of its items, or begin another one."
        )


def _longer_by(items: Sequence[Item], name: str, max_bytes: int) -> Become:
    """Return what adds items, with ids that are made of a name where they have none."""

    def longer(value: Value) -> Value:
        kept = [*value["items"], *with_ids(value["items"], items, name)]
        if len(kept) > MAX_KEPT_ITEMS:
            raise StorageFullError(
                f"the conversation would have {len(kept)} items; the limit is {MAX_KEPT_ITEMS}. "
                "Delete some, or begin another one."
            )
        check_size(kept, max_bytes)
        return {**value, "items": kept}

    return longer


def _missing(conversation_id: str) -> NotFoundError:
    return NotFoundError(
        f"no conversation {shorten(conversation_id)} is kept: they are for a while after their "
        "last change (PAGODA_GATEWAY_RESPONSE_STORE_SECONDS, _BYTES)"
    )


def _missing_item(item_id: str) -> NotFoundError:
    return NotFoundError(f"the conversation has no item {shorten(item_id)}")
