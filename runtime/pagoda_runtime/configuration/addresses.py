"""Addresses in settings: which can be used. No message repeats one, for it may have a password."""

import re
from urllib.parse import SplitResult, parse_qs, urlsplit

ENCODE = "a password's special characters percent-encoded (# is %23, / is %2F, @ is %40)"
_PASSWORD = re.compile(r"@|//.*:(?![0-9]{1,5}([/?,]|$))")
_ENDPOINT = re.compile(r"(?:dns:///)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_REDIS_DATABASE = re.compile(r"/?|/[0-9]{1,9}/?")


def redis_address(url: str) -> str:
    """Return the URL of a Redis; raise ValueError if it can be none."""
    parts = _split(url)
    if parts is None or not _is_redis(parts):
        raise ValueError(
            "give redis://:password@host:6379/0, rediss://... or unix://..., the port from 1 to "
            f"65535, the database a number, {ENCODE}"
        )
    return url


def nats_address(url: str) -> str:
    """Return the URL of a NATS server; raise ValueError if it can be none."""
    parts = _split(url)
    if parts is None or parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
        raise ValueError(
            "give nats://host:4222, tls://..., ws://... or wss://..., the port from 1 to 65535, "
            f"{ENCODE}"
        )
    return url


def endpoint_address(text: str) -> str:
    """Return `host:port`, or nothing; raise ValueError if it is something else."""
    match = _ENDPOINT.fullmatch(text)
    if text and not (match and 0 < int(match["port"]) < 65536):
        raise ValueError("give host:port, such as 127.0.0.1:7105, the port from 1 to 65535")
    return text


def may_have_password(text: str) -> bool:
    """Whether a URL in a text may have one: before an @, or where a port would stand."""
    return _PASSWORD.search(text) is not None


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None where a part cannot be what stands there."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port that is no number, or too large
        return None
    # A # or ? in a password ends the host: the rest of the password, and the @, come after it.
    is_cut = parts.fragment or ("@" in parts.path + parts.query and "@" not in parts.netloc)
    if parts.scheme == "unix":
        is_cut = False
    return None if port == 0 or is_cut else parts


def _is_redis(parts: SplitResult) -> bool:
    databases = parse_qs(parts.query).get("db", [])
    if not all(re.fullmatch("[0-9]{1,9}", database) for database in databases):
        return False
    if parts.scheme == "unix":
        return bool(parts.path)
    is_scheme = parts.scheme in ("redis", "rediss")
    is_given = bool(parts.netloc or parts.path)  # of redis:///0 the host is this one
    return is_scheme and is_given and _REDIS_DATABASE.fullmatch(parts.path) is not None
