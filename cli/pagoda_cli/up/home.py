"""The home folder of one stack: lock, secrets, generated files. All private to the user."""

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pagoda_cli.up.errors import HomeInUseError, SecretsError
from pagoda_runtime.messaging.permissions import PERMISSIONS
from pagoda_runtime.needed import needed, needed_folder

OTHERS = 0o077
_OWN = ("logs", "nats", "kvstore", "kvstore-[0-9]*", "traces", "outbox", "ledger.sqlite*")


@dataclass(frozen=True, slots=True)
class Secrets:
    """Drawn once for a home, the same at each start."""

    nats_passwords: dict[str, str]  # of each service's user
    redis_password: str
    cluster_token: str
    api_key: str
    admin_key: str


def lock_home(home: Path) -> IO[str]:
    """Create the folder and hold its lock until the file returned is closed.

    What earlier starts left open in it is closed to others; a home that was there stays as it is.

    Raises:
        HomeInUseError: another process holds it.
        StartError: it cannot be made or written.
    """
    with needed_folder(home, "PAGODA_HOME"):
        for folder in (home, home / "logs", home / "nats", home / "kvstore", home / "traces"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (home / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise HomeInUseError(home) from None
    _close_to_others(home)
    return lock


def _close_to_others(home: Path) -> None:
    """Leave what is Pagoda's own in the home to its owner; what a closed folder holds is closed."""
    for path in (path for pattern in _OWN for path in home.glob(pattern)):
        with contextlib.suppress(OSError):  # another user's, or a disk that knows no modes
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                path.chmod(mode & ~OTHERS)


def load_secrets(home: Path) -> Secrets:
    """Return the home's secrets, drawing those that are missing.

    Raises:
        SecretsError: the file is damaged.
        StartError: it cannot be read or written.
    """
    path = home / "secrets.json"
    known = _read_secrets(path) if path.is_file() else {}
    passwords = known.get("nats_passwords", {})
    drawn = Secrets(
        nats_passwords={
            user: passwords.get(user) or secrets.token_urlsafe(24) for user in PERMISSIONS
        },
        redis_password=known.get("redis_password") or secrets.token_urlsafe(24),
        cluster_token=known.get("cluster_token") or secrets.token_urlsafe(24),
        api_key=known.get("api_key") or f"pagoda-{secrets.token_urlsafe(24)}",
        admin_key=known.get("admin_key") or f"pagoda-admin-{secrets.token_urlsafe(24)}",
    )
    if asdict(drawn) != known:
        write_private(path, json.dumps(asdict(drawn), indent=2) + "\n")
    return drawn


def _read_secrets(path: Path) -> dict[str, Any]:
    try:
        with needed(f"cannot read {path}", "let this user read it, or set another PAGODA_HOME"):
            content = path.read_bytes()
        known = json.loads(content)
    except ValueError as error:
        raise SecretsError(path, str(error)) from error
    if not isinstance(known, dict):
        raise SecretsError(path, "it holds no JSON object")
    passwords = known.get("nats_passwords", {})
    texts = [*known.values(), *passwords.values()] if isinstance(passwords, dict) else [None]
    if not all(isinstance(text, str) for text in texts if text is not passwords):
        raise SecretsError(path, "not all of its values are texts")
    return known


def write_environment(path: Path, variables: Mapping[str, str]) -> None:
    """Write NAME=value lines that a shell can source."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
    write_private(path, "".join(lines))


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; only the user may read it.

    Raises:
        StartError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with needed(f"cannot write {path}", "make room there, or set another PAGODA_HOME"):
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))  # a locale without UTF-8 has such
        draft.replace(path)
