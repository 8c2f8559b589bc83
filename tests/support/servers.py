"""Real servers for tests: NATS (JetStream, token) and Redis, on free loopback ports.

with nats_server(tmp_path) as nats, redis_server(tmp_path) as redis:
    common = settings_for(nats, redis, home=tmp_path)
"""

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pagoda_cli.up.ports import Ports
from pagoda_runtime.configuration.settings import CommonSettings

START_SECONDS = 90.0


_ports = Ports()


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody else draws during this session."""
    return _ports.pick()


def binary(name: str) -> str:
    """The server's binary in this interpreter's environment, else on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    assert found, f"{name} is not installed"
    return found


@dataclass
class Server:
    """A running server; `stop` and `start` (same port, same data) simulate an outage."""

    command: list[str]
    port: int
    log: Path
    secret: str
    url: str
    process: subprocess.Popen[bytes] | None = field(default=None)
    options: dict[str, Any] = field(default_factory=dict)  # of the process

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, **self.options)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.command} did not start:\n{self.log.read_text()}")
            time.sleep(0.005)

    def stop(self, *, kill: bool = False) -> None:
        if self.process is None:
            return
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(60)
        self.process = None


@contextlib.contextmanager
def nats_server(folder: Path, *, token: str | None = None) -> Iterator[Server]:
    """Start nats-server with JetStream and a token; yields it, stops it."""
    token = secrets.token_hex(8) if token is None else token
    port = free_port()
    store = folder / f"jetstream-{port}"
    command = [binary("nats-server"), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(store)]
    command += ["--auth", token]
    url = f"nats://127.0.0.1:{port}"
    server = Server(command, port, folder / f"nats-{port}.log", token, url)
    server.start()
    try:
        yield server
    finally:
        server.stop(kill=True)


@contextlib.contextmanager
def redis_server(folder: Path, *, password: str | None = None) -> Iterator[Server]:
    """Start redis-server with a password and without persistence; yields it, stops it."""
    password = secrets.token_hex(8) if password is None else password
    port = free_port()
    command = [binary("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--requirepass", password, "--save", "", "--appendonly", "no", "--dir", str(folder)]
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    server = Server(command, port, folder / f"redis-{port}.log", password, url)
    server.start()
    try:
        yield server
    finally:
        server.stop(kill=True)


def settings_for(
    nats: Server | None = None, redis: Server | None = None, *, home: Path, **overrides: Any
) -> CommonSettings:
    """CommonSettings that point at the given servers; further fields by name."""
    values: dict[str, Any] = {"home": home, "cluster_token": SecretStr("test-cluster-token")}
    if nats:
        values |= {"nats_url": nats.url, "nats_token": SecretStr(nats.secret)}
    if redis:
        values |= {"redis_url": redis.url}
    return CommonSettings(**(values | overrides))
