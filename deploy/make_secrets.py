"""Draws the secrets of a compose project, and gives each container its own and no other's.

Runs as root before everything else, without a network. /secrets has one volume for each container:
services find NAME=value lines in ``env`` (read by deploy/entrypoint.sh), the servers their
configuration. What was drawn stays; the configurations are written anew at each start. An API key
that the caller of Compose names joins the ones in use: the gateway stores it at its next start.
A database that was named once stays, until another one is named: accounts never start anew unasked.
"""

import os
import re
import secrets
from pathlib import Path

from pagoda_runtime.messaging.permissions import PERMISSIONS, authorization
from pagoda_runtime.messaging.server_options import GIVE_UP

FOLDER = Path("/secrets")
NATS_DATA = Path("/data")
POSTGRES_DATA = Path("/postgres")  # there with deploy/compose.postgres.yaml
GIVEN = Path("/run/given")  # NAME=value lines, by compose.yaml: what its caller has set
OWNER = 10001  # the user in all containers
API_KEY_NAME = "PAGODA_GATEWAY_BOOTSTRAP_API_KEY"
ADMIN_KEY_NAME = "PAGODA_GATEWAY_ADMIN_KEY"
LEDGER_NAME = "PAGODA_GATEWAY_LEDGER_URL"
LIMITS_REDIS_NAME = "PAGODA_GATEWAY_LIMITS_REDIS_URL"
LEDGER_FILE = "sqlite:////var/lib/pagoda/ledger.sqlite"
# sync_interval always: a usage record that was acknowledged is on disk.
# max_payload: long prompts travel as token ids. http: for the health check in the container alone.
NATS = f"""port: 4222
http: 127.0.0.1:8222
max_payload: 8MB
{GIVE_UP}jetstream {{ store_dir: /data, sync_interval: always }}
"""
REDIS_LIMIT_NAME, REDIS_LIMIT = "PAGODA_REDIS_MEM_LIMIT", "1500m"
REDIS = """requirepass %s
save ""
appendonly no
maxmemory %d
maxmemory-policy volatile-ttl
"""


def main() -> None:
    """Write every container's files."""
    known = {service: read_lines(FOLDER / service / "env") for service in PERMISSIONS}
    passwords = {
        service: known[service].get("PAGODA_NATS_TOKEN") or secrets.token_urlsafe(32)
        for service in PERMISSIONS
    }
    cluster_token = known["decode"].get("PAGODA_CLUSTER_TOKEN") or secrets.token_urlsafe(32)
    redis_url = (
        known["router"].get("PAGODA_REDIS_URL")
        or f"redis://:{secrets.token_urlsafe(32)}@redis:6379/0"
    )
    given, gateway = read_lines(GIVEN), known["gateway"]
    api_key = (
        given.get("PAGODA_API_KEY")
        or gateway.get(API_KEY_NAME)
        or f"sk-pagoda-{secrets.token_urlsafe(24)}"
    )
    admin_key = (
        given.get(ADMIN_KEY_NAME)
        or gateway.get(ADMIN_KEY_NAME)
        or f"pagoda-admin-{secrets.token_urlsafe(24)}"
    )
    ledger_url = given.get(LEDGER_NAME) or postgres_url() or gateway.get(LEDGER_NAME) or LEDGER_FILE
    own = {
        "gateway": {
            API_KEY_NAME: api_key,
            ADMIN_KEY_NAME: admin_key,
            LEDGER_NAME: ledger_url,
            "PAGODA_REDIS_URL": redis_url,
            LIMITS_REDIS_NAME: given.get(LIMITS_REDIS_NAME) or gateway.get(LIMITS_REDIS_NAME, ""),
        },
        "applier": {LEDGER_NAME: ledger_url},
        "router": {"PAGODA_REDIS_URL": redis_url},
        "prefill": {"PAGODA_CLUSTER_TOKEN": cluster_token},
        "decode": {"PAGODA_CLUSTER_TOKEN": cluster_token},
        "kvstore": {"PAGODA_CLUSTER_TOKEN": cluster_token},
    }
    for service, password in passwords.items():
        lines = {"PAGODA_NATS_USER": service, "PAGODA_NATS_TOKEN": password} | own[service]
        write(
            service, "env", "".join(f"{name}={value}\n" for name, value in lines.items() if value)
        )
    write("nats", "nats.conf", NATS + authorization(passwords))
    redis_password = redis_url.removeprefix("redis://:").split("@")[0]
    redis_bytes = redis_max_bytes(given.get(REDIS_LIMIT_NAME) or REDIS_LIMIT)
    write("redis", "redis.conf", REDIS % (redis_password, redis_bytes))
    if POSTGRES_DATA.is_dir():
        os.chown(POSTGRES_DATA, OWNER, OWNER)
    for path in (NATS_DATA, *NATS_DATA.rglob("*")):  # of an older version, which ran as root
        os.chown(path, OWNER, OWNER)


def redis_max_bytes(limit: str) -> int:
    """Return what Redis may hold where its container may have `limit`, a size as Compose reads it.

    1 GiB of 1500m, and the same share of any other: the rest is for buffers and gaps.
    """
    size = re.fullmatch(r"(\d+(?:\.\d*)?) ?([kmgtp]?)(?:i?b)?", limit.strip(), re.IGNORECASE)
    if size is None:
        raise SystemExit(f"{REDIS_LIMIT_NAME}: {limit!r} is no size such as 1500m")
    num_bytes = int(float(size[1]) * 1024 ** " kmgtp".index(size[2].lower() or " "))
    return num_bytes * 1024 // 1500


def postgres_url() -> str:
    """Draw the password of the project's own PostgreSQL, if it has one; return its URL."""
    if not POSTGRES_DATA.is_dir():
        return ""
    path = FOLDER / "postgres" / "password"
    password = path.read_text() if path.is_file() else secrets.token_urlsafe(32)
    write("postgres", "password", password)
    return f"postgresql://pagoda:{password}@postgres:5432/pagoda"


def read_lines(path: Path) -> dict[str, str]:
    """NAME=value lines of a file; a value may hold anything but a line's end."""
    if not path.is_file():
        return {}
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def write(container: str, name: str, text: str) -> None:
    """Replace a file in one step; only the containers' user may read it."""
    draft = FOLDER / container / f".{name}"
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
        file.write(text)
    os.chown(draft, OWNER, OWNER)
    draft.replace(FOLDER / container / name)


if __name__ == "__main__":
    main()
