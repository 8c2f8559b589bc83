"""Who may say what on NATS: one user for each service, with what it may publish and hear.

Owns the table and how a NATS server's configuration writes it down. Draws no password and runs no
server. A service that starts to use another subject gets it here, or the server refuses it (the
service logs `permissions violation`). Answers need no subject of their own: who hears a request may
answer it once. Inboxes are apart by user, so nobody hears another's answers.

One service may make, change and replace a stream, the one that reads it: the subjects of a stream
and where it is published again are in its configuration, so whoever may write that hears all and
says anything. The others ask it to (see `stream_repair`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.stream_repair import (
    LEASE_STREAM,
    PROBE_STREAM,
    PROBE_SUBJECT,
    lease_subject,
    wanted_subject,
)

ANSWER_SECONDS = 60  # who has not answered by then, may not: every request's deadline is below


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that one user may publish to and subscribe to, its own inbox aside."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    may_answer: bool = False


def inbox_prefix(user: str) -> str:
    """Return where the answers for a user come in; no user: the client library's default."""
    return f"{subjects.INBOX}.{user}" if user else subjects.INBOX


def _making(stream: str) -> tuple[str, ...]:
    """What takes to make a stream and, after a write error, to make it anew: see stream_repair."""
    own = (f"$JS.API.STREAM.{call}.{stream}" for call in ("CREATE", "UPDATE", "INFO", "DELETE"))
    lease = (f"$JS.API.STREAM.{call}.{LEASE_STREAM}" for call in ("CREATE", "PURGE"))
    probe = (f"$JS.API.STREAM.{call}.{PROBE_STREAM}" for call in ("CREATE", "DELETE"))
    return (
        *own,
        f"$JS.API.CONSUMER.LIST.{stream}",
        *lease,
        lease_subject(stream),
        *probe,
        PROBE_SUBJECT,
    )


def _writing(stream: str) -> tuple[str, ...]:
    """What takes, beside its subjects, to write a stream that another service makes."""
    return f"$JS.API.STREAM.INFO.{stream}", wanted_subject(stream)


def _consuming(stream: str) -> tuple[str, ...]:
    return (
        f"$JS.API.CONSUMER.CREATE.{stream}.*",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.*",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.API.STREAM.PURGE.{stream}",
        f"$JS.ACK.{stream}.>",
    )


def _worker(role: str) -> Permissions:
    """A worker of one role: takes its work, tells tokens, blocks and itself."""
    is_decode = role == "decode"
    asks: tuple[str, ...] = (subjects.release("*"),)
    work: tuple[str, ...] = (subjects.prefill("*"),)
    if is_decode:
        asks = (subjects.prefill("*"), subjects.cancel("*"))
        work = (subjects.decode("*"), subjects.probe("*"), subjects.release("*"))
    peers = subjects.status_of("prefill" if is_decode else "decode")
    return Permissions(
        publish=(
            subjects.frames("*"),
            subjects.status(role, "*"),
            subjects.kv_events("*"),
            *_writing(subjects.KV_EVENTS_STREAM),
            subjects.USAGE_SEQUENCES,
            *asks,
        ),
        subscribe=(
            *work,
            subjects.adapters("*"),
            subjects.cancel("*"),
            subjects.kv_snapshot("*"),
            subjects.status_of("gateway"),
            peers,
        ),
        may_answer=True,
    )


PERMISSIONS: Mapping[str, Permissions] = {
    "gateway": Permissions(
        publish=(
            subjects.ROUTE_ALL,
            subjects.decode("*"),
            subjects.cancel("*"),
            subjects.probe("*"),
            subjects.adapters("*"),
            subjects.status("gateway", "*"),
            subjects.ACCOUNTS_CHANGED,
            subjects.USAGE_REQUESTS,
            subjects.LEDGER_RECONCILE,
            *_writing(subjects.USAGE_STREAM),
            f"$JS.API.CONSUMER.INFO.{subjects.USAGE_STREAM}.*",  # what the ledger has of it
        ),
        subscribe=(
            subjects.frames("*"),
            subjects.ACCOUNTS_CHANGED,
            subjects.ACCOUNTS_APPLIED,
            subjects.status_of("decode"),
            subjects.status_of("prefill"),
            subjects.status_of("router"),
        ),
    ),
    "applier": Permissions(
        publish=(
            subjects.ACCOUNTS_APPLIED,
            *_making(subjects.USAGE_STREAM),
            *_consuming(subjects.USAGE_STREAM),
        ),
        subscribe=(
            subjects.LEDGER_RECONCILE,
            subjects.status_of("gateway"),
            wanted_subject(subjects.USAGE_STREAM),
        ),
        may_answer=True,
    ),
    "router": Permissions(
        publish=(
            subjects.kv_snapshot("*"),
            subjects.status("router", "*"),
            *_making(subjects.KV_EVENTS_STREAM),
            *_consuming(subjects.KV_EVENTS_STREAM),
        ),
        subscribe=(
            subjects.ROUTE_ALL,
            *(subjects.status_of(role) for role in ("prefill", "decode", "kvstore")),
            wanted_subject(subjects.KV_EVENTS_STREAM),
        ),
        may_answer=True,
    ),
    "prefill": _worker("prefill"),
    "decode": _worker("decode"),
    "kvstore": Permissions(
        publish=(
            subjects.status("kvstore", "*"),
            subjects.kv_events("*"),
            *_writing(subjects.KV_EVENTS_STREAM),
        ),
        subscribe=(subjects.kv_snapshot("*"),),
    ),
}
"""Of each service's user; the user has the service's name."""


def authorization(passwords: Mapping[str, str]) -> str:
    """Return the `authorization` block of a nats.conf.

    Args:
        passwords: of each user in PERMISSIONS.
    """
    users = [
        {"user": user, "password": passwords[user], "permissions": _rendered(user, permissions)}
        for user, permissions in PERMISSIONS.items()
    ]
    return f"authorization {json.dumps({'users': users}, indent=2)}\n"


def _rendered(user: str, permissions: Permissions) -> dict[str, object]:
    inbox = f"{inbox_prefix(user)}.>"
    rendered: dict[str, object] = {
        "publish": [*permissions.publish, inbox],
        "subscribe": [*permissions.subscribe, inbox],
    }
    if permissions.may_answer:
        rendered["allow_responses"] = {"max": 1, "expires": f"{ANSWER_SECONDS}s"}
    return rendered
