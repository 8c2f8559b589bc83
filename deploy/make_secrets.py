"""Draws the secrets of a compose project once, into the volume that its containers share.

Writes ``env`` (read by deploy/entrypoint.sh), ``nats.conf`` and ``redis.conf``. A secret that
the environment names is taken as it is; files that exist are kept, and restarts keep their keys.
"""

import os
import secrets
from pathlib import Path

FOLDER = Path("/run/pagoda")


def value(name: str, make: str) -> str:
    """The environment's value, or a fresh one."""
    return os.environ.get(name) or make


def main() -> None:
    """Write the three files unless they are there."""
    if (FOLDER / "env").exists():
        return
    nats_token = value("PAGODA_NATS_TOKEN", secrets.token_urlsafe(32))
    redis_password = secrets.token_urlsafe(32)
    lines = {
        "PAGODA_NATS_TOKEN": nats_token,
        "PAGODA_REDIS_URL": f"redis://:{redis_password}@redis:6379/0",
        "PAGODA_CLUSTER_TOKEN": value("PAGODA_CLUSTER_TOKEN", secrets.token_urlsafe(32)),
        "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": value(
            "PAGODA_GATEWAY_BOOTSTRAP_API_KEY", f"sk-pagoda-{secrets.token_urlsafe(24)}"
        ),
    }
    # sync_interval always: a usage record that was acknowledged is on disk.
    # max_payload: long prompts travel as token ids.
    (FOLDER / "nats.conf").write_text(
        "port: 4222\nhttp_port: 8222\nmax_payload: 8MB\n"
        f"authorization {{ token: {nats_token!r} }}\n"
        "jetstream { store_dir: /data, sync_interval: always }\n"
    )
    # volatile-ttl: only the prefix index has a time to live, and it can be rebuilt.
    (FOLDER / "redis.conf").write_text(
        f'requirepass {redis_password}\nsave ""\nappendonly no\nmaxmemory 1gb\n'
        "maxmemory-policy volatile-ttl\n"
    )
    for name in ("nats.conf", "redis.conf"):
        (FOLDER / name).chmod(0o644)  # the volume is private to this project's containers
    (FOLDER / "env").write_text("".join(f"{name}={text}\n" for name, text in lines.items()))


if __name__ == "__main__":
    main()
