"""/v1/conversations: OpenAI's Conversations API, which responses go on with and add to."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.responses.answers import (
    ConversationAnswer,
    DeletedConversation,
    InputItem,
    InputItemList,
)
from pagoda_gateway.responses.input_items import DEFAULT_ITEMS, MAX_ITEMS, item_page
from pagoda_gateway.responses.schemas import ConversationBody, ConversationUpdate, NewItemsBody

PATH = "/v1/conversations"
_ONE = f"{PATH}/{{conversation_id}}"
_ITEMS = f"{_ONE}/items"


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["conversations"])
    conversations = gateway.responses.conversations

    @router.post(PATH, openapi_extra=described(ConversationAnswer, body=ConversationBody))
    async def create_conversation(request: Request) -> dict[str, Any]:
        """Keep a conversation for the caller's tenant."""
        async with admitted_body(gateway, request, ConversationBody) as body:
            return await conversations.create(
                caller_of(request).key.tenant, body.items or (), body.metadata or {}
            )

    @router.get(_ONE, openapi_extra=described(ConversationAnswer))
    async def get_conversation(conversation_id: str, request: Request) -> dict[str, Any]:
        """Return a conversation of the caller's own tenant."""
        return await conversations.find(caller_of(request).key.tenant, conversation_id)

    @router.post(_ONE, openapi_extra=described(ConversationAnswer, body=ConversationUpdate))
    async def update_conversation(conversation_id: str, request: Request) -> dict[str, Any]:
        """Put other metadata in place of a conversation's."""
        async with admitted_body(gateway, request, ConversationUpdate) as body:
            return await conversations.update(
                caller_of(request).key.tenant, conversation_id, body.metadata or {}
            )

    @router.delete(_ONE, openapi_extra=described(DeletedConversation))
    async def delete_conversation(conversation_id: str, request: Request) -> dict[str, Any]:
        """Forget a conversation and its items."""
        await conversations.delete(caller_of(request).key.tenant, conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    @router.get(_ITEMS, openapi_extra=described(InputItemList))
    async def list_items(
        conversation_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = DEFAULT_ITEMS,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """Return what is in a conversation."""
        items = await conversations.items(caller_of(request).key.tenant, conversation_id)
        return item_page(items, limit=limit, after=after, order=order)

    @router.post(_ITEMS, openapi_extra=described(InputItemList, body=NewItemsBody))
    async def add_items(conversation_id: str, request: Request) -> dict[str, Any]:
        """Add items to a conversation; return those."""
        async with admitted_body(gateway, request, NewItemsBody) as body:
            tenant = caller_of(request).key.tenant
            added = await conversations.add(tenant, conversation_id, body.items)
        return item_page(added, limit=MAX_ITEMS, after=None, order="asc")

    @router.get(f"{_ITEMS}/{{item_id}}", openapi_extra=described(InputItem))
    async def get_item(conversation_id: str, item_id: str, request: Request) -> dict[str, Any]:
        """Return one item of a conversation."""
        return await conversations.item(caller_of(request).key.tenant, conversation_id, item_id)

    @router.delete(f"{_ITEMS}/{{item_id}}", openapi_extra=described(ConversationAnswer))
    async def delete_item(conversation_id: str, item_id: str, request: Request) -> dict[str, Any]:
        """Delete one item of a conversation; return the conversation."""
        return await conversations.remove(caller_of(request).key.tenant, conversation_id, item_id)

    return router
