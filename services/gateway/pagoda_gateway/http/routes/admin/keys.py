"""/admin/keys."""

from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import RowMapping

from pagoda_gateway.admin.answers import CreatedKey, Key, KeyList, key_answer, list_answer
from pagoda_gateway.admin.bodies import KeyChange, KeyRotation, NewKey
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Filter, Limit, admin_router


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("keys")
    keys, bodies = gateway.tenancy.api_keys, BodyReader.of(gateway)

    def answer(row: RowMapping) -> dict[str, Any]:
        return key_answer(row, gateway.now())

    @router.post("", openapi_extra=described(CreatedKey, body=NewKey))
    async def create_key(request: Request) -> dict[str, Any]:
        """Create a key of a tenant; the answer is the only one that has it."""
        async with read_body(request, NewKey, bodies) as body:
            row, secret = await keys.create(
                body.tenant,
                label=body.label,
                models=body.models,
                expires_unix_seconds=body.expires_at,
                tier=body.tier,
            )
            return {**answer(row), "key": secret}

    @router.get("", openapi_extra=described(KeyList))
    async def list_keys(
        tenant: Filter = None, limit: Limit = 100, after: After = ""
    ) -> dict[str, Any]:
        """List keys, revoked ones too, of one tenant if it is named."""
        page = await keys.page(tenant=tenant, after=after, limit=limit)
        return list_answer(page.rows, page.has_more, answer)

    @router.get("/{key_id}", openapi_extra=described(Key))
    async def get_key(key_id: str) -> dict[str, Any]:
        """Describe one key."""
        return answer(await keys.records.get(key_id))

    @router.patch("/{key_id}", openapi_extra=described(Key, body=KeyChange))
    async def update_key(key_id: str, request: Request) -> dict[str, Any]:
        """Change what is sent."""
        async with read_body(request, KeyChange, bodies) as body:
            values = body.given()
            if "expires_at" in values:
                values["expires_unix_seconds"] = values.pop("expires_at")
            return answer(await keys.update(key_id, values))

    @router.post("/{key_id}/rotate", openapi_extra=described(CreatedKey, body=KeyRotation))
    async def rotate_key(key_id: str, request: Request) -> dict[str, Any]:
        """Create a key that takes this one's place; for a while both work."""
        async with read_body(request, KeyRotation, bodies) as body:
            row, secret = await keys.rotate(key_id, overlap_seconds=body.overlap_seconds)
            return {**answer(row), "key": secret}

    @router.delete("/{key_id}", openapi_extra=described(Key))
    async def revoke_key(key_id: str) -> dict[str, Any]:
        """Make a key useless on every gateway, for ever."""
        return answer(await keys.revoke(key_id))

    return router
