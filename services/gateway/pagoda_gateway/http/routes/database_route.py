"""Routes that cannot do without the database: when it does not answer, they say so."""

import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError

from pagoda_gateway.accounts.database import refusal
from pagoda_gateway.errors import UnavailableError

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 2.0


class DatabaseRoute(APIRoute):
    """Turns what the database raises into a 503."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, watched."""
        handle = super().get_route_handler()

        async def watched(request: Request) -> Response:
            with database_answers(request):
                return await handle(request)

        return watched


@contextlib.contextmanager
def database_answers(request: Request) -> Iterator[None]:
    """Turn what the database raises within into a 503.

    Raises:
        UnavailableError: it does not answer, or not as it should.
    """
    try:
        yield
    except (OSError, SQLAlchemyError) as error:
        logger.warning("%s %s: %r", request.method, request.url.path, error)
        raise UnavailableError(
            f"the database of accounts {refusal(error)}; try again",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        ) from error
