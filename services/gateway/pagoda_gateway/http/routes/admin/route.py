"""What the routes of the administration share: their log, pages of lists."""

import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pagoda_gateway.http.middleware import ADMIN_PATH
from pagoda_gateway.http.routes.database_route import DatabaseRoute

logger = logging.getLogger(__name__)

Limit = Annotated[int, Query(ge=1, le=1000, description="Most that one answer lists.")]
After = Annotated[str, Query(max_length=128, description="The last id of the answer before.")]

Filter = Annotated[str | None, Query(max_length=128, description="List what belongs to it.")]


class AdminRoute(DatabaseRoute):
    """Logs what was changed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a line in the log for each change."""
        handle = super().get_route_handler()

        async def logged(request: Request) -> Response:
            answer = await handle(request)
            if request.method != "GET":
                logger.info("administration: %s %s", request.method, request.url.path)
            return answer

        return logged


def admin_router(noun: str) -> APIRouter:
    """Return a router of /admin/<noun>."""
    return APIRouter(prefix=f"{ADMIN_PATH}/{noun}", tags=["administration"], route_class=AdminRoute)
