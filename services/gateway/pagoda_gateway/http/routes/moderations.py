"""POST /v1/moderations."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.errors import NotFoundError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.openai.schemas.moderations import Moderation, ModerationBody
from pagoda_gateway.safety.moderation import moderation_result


def make_router(gateway: Gateway) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["moderations"])

    @router.post("/v1/moderations", openapi_extra=described(Moderation, body=ModerationBody))
    async def moderations(request: Request) -> dict[str, Any]:
        """Say what the policy of the caller's tenant finds in texts."""
        caller = caller_of(request)
        async with admitted_body(gateway, request, ModerationBody) as body:
            policy = gateway.policies.of_tenant(caller.key.tenant)
            if policy is None or not policy.has_rules:
                raise NotFoundError(
                    "no rule is there to judge texts of this tenant: name it in a policy of "
                    "PAGODA_GATEWAY_SAFETY_FILE"
                )
            results = [await moderation_result(policy, text) for text in body.input]
        return {"id": f"modr-{caller.request_id}", "model": policy.name, "results": results}

    return router
