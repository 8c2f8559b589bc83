"""POST /v1/embeddings."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagoda_gateway.embeddings.schemas import EmbeddingList, EmbeddingsBody
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.generation.handler import GenerationHandler
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.plain_route import PlainRoute


def make_router(gateway: Gateway) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["embeddings"], route_class=PlainRoute)
    handler = GenerationHandler(gateway, gateway.embeddings)

    @router.post(
        "/v1/embeddings",
        response_model=None,
        openapi_extra=described(EmbeddingList, body=EmbeddingsBody),
    )
    async def embeddings(request: Request) -> Response:
        """Return the embedding of each input."""
        return await handler.handle(request)

    return router
