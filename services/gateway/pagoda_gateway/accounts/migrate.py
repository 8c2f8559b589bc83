"""Brings a database to today's tables, whoever comes first of several gateways that start at once.

Knows how databases are locked and which revision is the last; the revisions are in `migrations/`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from pagoda_runtime.errors import RuntimeServiceError

FOLDER = Path(__file__).with_name("migrations")
LAST_REVISION = "0014"
WAIT_SECONDS = 60  # for another gateway that migrates
_LOCK = 0x7061676F6461  # "pagoda": an advisory lock is a number


class DatabaseVersionError(RuntimeServiceError):
    """A newer version of the gateway has changed the tables; this one does not know how."""


def migrate(engine: sa.Engine) -> None:
    """Run the revisions that a database lacks, all of them or none. Blocks.

    Raises:
        DatabaseVersionError: its revision is none that this version knows.
        SQLAlchemyError: the database does not answer, or another gateway migrates for too long.
    """
    with engine.connect() as connection:
        if _revision(connection) == LAST_REVISION:
            return
    with engine.connect() as connection, _alone(connection):
        _upgrade(connection)


def _upgrade(connection: sa.Connection) -> None:
    # Imported for a migration alone: it takes 12 MB that a gateway has no use for afterwards.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, LAST_REVISION)
    except CommandError as error:
        raise DatabaseVersionError(
            f"the ledger has revision {_revision(connection)!r}, this version of the gateway knows "
            f"those up to {LAST_REVISION!r}: start a version that is as new as the ledger"
        ) from error


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version"))
    revision: str | None = found.scalar()
    return revision


@contextlib.contextmanager
def _alone(connection: sa.Connection) -> Iterator[None]:
    """Hold the database's lock for one transaction, which ends with the block."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{WAIT_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        yield
        connection.commit()
        return
    # Python's driver ends transactions before a change of tables; here it knows of none. SQLite
    # adds a column that refers to another table only while references are not checked.
    connection.execution_options(isolation_level="AUTOCOMMIT")
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {1000 * WAIT_SECONDS}")
    connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.exec_driver_sql("BEGIN EXCLUSIVE")
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    finally:
        connection.invalidate()  # its pragmas are of no use to others
