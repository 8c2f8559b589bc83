"""A real PostgreSQL for tests: the one on PATH, else the one that the package pgserver brings.

with postgres_server() as server:
    url = server.new_database()
"""

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from support.servers import START_SECONDS, Server, free_port

# All rows are again those that were kept, and all sequences begin anew: to make a database, of
# hundreds of files, or tables takes far longer. Without triggers, so that their order is any.
REMEMBER = """
DO $$ DECLARE t record; BEGIN
    CREATE SCHEMA kept;
    FOR t IN SELECT relname FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    LOOP EXECUTE format('CREATE TABLE kept.%1$I AS TABLE public.%1$I', t.relname); END LOOP;
END $$
"""
RESTORE = """
DO $$ DECLARE t record; BEGIN
    SET LOCAL session_replication_role = replica;
    FOR t IN SELECT relname FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE format('DELETE FROM public.%I', t.relname);
        EXECUTE format('INSERT INTO public.%1$I SELECT * FROM kept.%1$I', t.relname);
    END LOOP;
    FOR t IN SELECT sequencename, start_value FROM pg_sequences WHERE schemaname = 'public'
    LOOP PERFORM setval(format('public.%I', t.sequencename)::regclass, t.start_value, false);
    END LOOP;
END $$
"""
# It need not survive a power cut, and does not wait for a disk.
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB")


@dataclass
class Postgres:
    """A running server; everybody on this machine may connect as `postgres`."""

    server: Server
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _prepared: defaultdict[Callable[[str], object], list[str]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def new_database(self, encoding: str = "UTF8") -> str:
        """Make an empty database; return its URL."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'")
        return f"{self.server.url}/{name}"

    @contextlib.contextmanager
    def lent(self, prepare: Callable[[str], object]) -> Iterator[str]:
        """Yield the URL of a database as `prepare` leaves one, perhaps used by others that did so.

        Its rows may be changed, no more: they are restored afterwards, and connections ended.
        """
        if prepared := self._prepared[prepare]:
            url = prepared.pop()
        else:
            prepare(url := self.new_database())
            self._execute(REMEMBER, url)
        yield url
        name = url.rsplit("/", 1)[1]
        self._execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        self._execute(RESTORE, url)
        self._prepared[prepare].append(url)

    def shut_out(self, url: str) -> None:
        """Break all connections to a database, and let nobody in."""
        name = url.rsplit("/", 1)[1]
        self._execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self._execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )

    def let_in(self, url: str) -> None:
        """End what `shut_out` began."""
        self._execute(f"ALTER DATABASE {url.rsplit('/', 1)[1]} ALLOW_CONNECTIONS true")

    def set_read_only(self, url: str, is_read_only: bool) -> None:
        """Have all connections to a database, those that come, only read, or write again."""
        value = "on" if is_read_only else "off"
        name = url.rsplit("/", 1)[1]
        self._execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
        self._execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )

    def set_isolation(self, url: str, level: str) -> None:
        """Have a database's transactions be of that level from the next connection on."""
        name = url.rpartition("/")[2]
        self._execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")

    def _execute(self, statement: str, url: str = "") -> None:
        with psycopg.connect(url or f"{self.server.url}/postgres", autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def postgres_server(*, is_durable: bool = False) -> Iterator[Postgres]:
    """Start PostgreSQL on a free loopback port; root's as another user, as it insists.

    `is_durable`: what it commits survives that it is killed.
    """
    with tempfile.TemporaryDirectory(prefix="pagoda-postgres-") as name:
        folder = Path(name)
        as_user = _unprivileged(folder)
        binaries = _binaries(folder)
        data, port = folder / "data", free_port()
        made = subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C"],
            capture_output=True, text=True, cwd=folder, **as_user,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        settings = () if is_durable else QUICK
        command += [part for setting in settings for part in ("-c", setting)]
        url = f"postgresql://postgres@127.0.0.1:{port}"
        server = Server(command, port, folder / "log", "", url, options={"cwd": folder, **as_user})
        server.start()
        try:
            _wait_until_it_answers(f"{url}/postgres")
            yield Postgres(server)
        finally:
            if server.process is not None:
                server.process.send_signal(signal.SIGQUIT)  # nobody needs what is in it
                server.process.wait(START_SECONDS)


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Return whom processes run as, and give them the folder."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _binaries(folder: Path) -> Path:
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(found).resolve().parent
    package = importlib.util.find_spec("pgserver")
    origin = package.origin if package else None
    assert origin, "no PostgreSQL: neither initdb and postgres on PATH nor the package pgserver"
    installed = Path(origin).parent
    if os.geteuid() == 0:
        # Where this lies, only root may look, perhaps. Its libraries lie beside it.
        for part in (installed, installed.with_name("pgserver.libs")):
            if part.is_dir():
                shutil.copytree(part, folder / part.name)
        installed = folder / installed.name
    return installed / "pginstall" / "bin"


def _wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
