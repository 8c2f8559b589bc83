"""A database that one test after the other is lent is as it was prepared, for each of them."""

import psycopg
import pytest
from support.postgres import Postgres

PREPARED = """
    CREATE TABLE parents (id SERIAL PRIMARY KEY, name TEXT);
    CREATE TABLE children (parent INTEGER REFERENCES parents);
    INSERT INTO parents (id, name) VALUES (0, 'kept');
    INSERT INTO children VALUES (0);
"""


def prepare(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(PREPARED)


@pytest.mark.integration
def test_rows_and_numbers_of_a_borrower_are_not_the_next_ones(postgres: Postgres) -> None:
    urls, found = [], []
    for _ in range(2):
        with postgres.lent(prepare) as url, psycopg.connect(url) as connection:
            urls.append(url)
            connection.execute("INSERT INTO parents (name) VALUES ('new')")
            connection.execute("UPDATE parents SET name = name || ', changed'")
            connection.execute("INSERT INTO children SELECT id FROM parents")
            rows = "SELECT id, name, parent FROM parents JOIN children ON id = parent"
            found.append(sorted(connection.execute(rows).fetchall()))
    assert urls[0] == urls[1]
    assert found[0] == found[1] == [
        (0, "kept, changed", 0), (0, "kept, changed", 0), (1, "new, changed", 1),
    ]  # fmt: skip
