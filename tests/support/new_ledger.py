"""A ledger that nobody has used: its tables are made once in a process, since that takes 0.1 s."""

import functools
import tempfile
from pathlib import Path

import sqlalchemy as sa

from pagoda_gateway.accounts.database import database_address
from pagoda_gateway.accounts.migrate import migrate


def make_tables(url: str) -> None:
    """Bring the database at `url` to today's tables."""
    migrate(sa.create_engine(database_address(url), poolclass=sa.NullPool))


def write_ledger(path: Path) -> None:
    """Write such a SQLite file, for whoever opens it there; what is there stays."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(_sqlite())


@functools.cache
def _sqlite() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        make_tables(f"sqlite:///{path}")
        return path.read_bytes()
