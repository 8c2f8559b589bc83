"""What a client is told when the database of accounts takes nothing."""

import sqlite3
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from starlette.requests import Request

from pagoda_gateway.errors import UnavailableError
from pagoda_gateway.http.routes.database_route import database_answers


@pytest.fixture
def full_database() -> Iterator[sa.Engine]:
    """A real one, whose file may not grow."""
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (x)"))
        connection.execute(sa.text("PRAGMA max_page_count = 2"))
    yield engine
    engine.dispose()


def test_a_full_disk_is_named(full_database: sa.Engine) -> None:
    request = Request({"type": "http", "method": "POST", "path": "/v1/files", "headers": []})
    with (
        pytest.raises(UnavailableError, match="its disk is full; try again"),
        database_answers(request),
        full_database.begin() as connection,
    ):
        connection.execute(sa.text("INSERT INTO t VALUES (zeroblob(100000))"))


def test_another_failure_is_not_a_full_disk() -> None:
    request = Request({"type": "http", "method": "POST", "path": "/v1/files", "headers": []})
    with pytest.raises(UnavailableError, match="does not answer"), database_answers(request):
        raise sa.exc.OperationalError("SELECT 1", None, sqlite3.OperationalError("locked"))
