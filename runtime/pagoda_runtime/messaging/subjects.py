"""Every NATS subject and JetStream stream of the platform, in one place.

Subjects are ``pagoda.v1.<service>[.<id>]``. Ids never contain dots, spaces or wildcards; `token`
makes one of any text.
"""

import functools
import hashlib
import re

PREFIX = "pagoda.v1"
INBOX = "_INBOX"  # answers come in under it

USAGE_STREAM = "USAGE"
USAGE_REQUESTS = f"{PREFIX}.usage.requests"  # gateways' records
USAGE_SEQUENCES = f"{PREFIX}.usage.sequences"  # workers' records
USAGE_ALL = f"{PREFIX}.usage.*"

ACCOUNTS_CHANGED = f"{PREFIX}.accounts.changed"  # from one gateway to all
ACCOUNTS_APPLIED = f"{PREFIX}.accounts.applied"  # from an applier to all gateways
LEDGER_RECONCILE = f"{PREFIX}.ledger.reconcile"  # request/reply; appliers share LEDGER_QUEUE
LEDGER_QUEUE = "ledger"

KV_EVENTS_STREAM = "KV_EVENTS"
KV_EVENTS_ALL = f"{PREFIX}.kv_events.*"
KV_EVENTS_MAX_BYTES = 256 * 2**20  # the oldest events go first

STATUS_ALL = f"{PREFIX}.status.*.*"

ROUTE_ALL = f"{PREFIX}.route.*"
ROUTER_QUEUE = "router"

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_plain(text: str) -> bool:
    """Return whether `text` may be an id: up to 64 letters, digits, `-` and `_`.

    Others would end a subject, or NATS's whole line: whoever takes an id in a message looks.
    """
    return _PLAIN.fullmatch(text) is not None


def is_inbox(subject: str) -> bool:
    """Return whether somebody's answers come in there.

    A server lets whoever hears a message publish once to the subject that it names for its answer,
    whatever that is: who answers elsewhere does what the sender may not.
    """
    return subject.startswith(f"{INBOX}.")


@functools.lru_cache(maxsize=1024)
def token(text: str) -> str:
    """Return `text` as one subject token: itself if plain, else a readable slug and a hash."""
    if is_plain(text):
        return text
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:40].strip("-")
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return f"{slug}-{digest}"


def route(model: str) -> str:
    """Routing requests for `model`; routers share them in the queue group ROUTER_QUEUE."""
    return f"{PREFIX}.route.{token(model)}"


def prefill(worker_id: str) -> str:
    """Prefill work for one worker (request/reply)."""
    return f"{PREFIX}.prefill.{worker_id}"


def decode(worker_id: str) -> str:
    """Sequences to generate on one worker (request/reply)."""
    return f"{PREFIX}.decode.{worker_id}"


def cancel(worker_id: str) -> str:
    """Cancellations for one worker (publish)."""
    return f"{PREFIX}.cancel.{worker_id}"


def release(worker_id: str) -> str:
    """Leases of one decode worker for which nothing will be pushed (publish)."""
    return f"{PREFIX}.release.{worker_id}"


def probe(worker_id: str) -> str:
    """Questions about silent sequences to one decode worker (request/reply)."""
    return f"{PREFIX}.probe.{worker_id}"


def adapters(worker_id: str) -> str:
    """Adapters to load or unload on one worker (request/reply)."""
    return f"{PREFIX}.adapters.{worker_id}"


def frames(gateway_id: str) -> str:
    """Tokens on their way to one gateway: one message per step of each worker."""
    return f"{PREFIX}.frames.{gateway_id}"


def status(role: str, worker_id: str) -> str:
    """Heartbeats of one process; role is prefill, decode, kvstore, gateway or router."""
    return f"{PREFIX}.status.{role}.{worker_id}"


def status_of(role: str) -> str:
    """Heartbeats of all processes of one role."""
    return f"{PREFIX}.status.{role}.*"


def kv_events(worker_id: str) -> str:
    """Blocks stored and evicted by one worker or kvstore (JetStream KV_EVENTS)."""
    return f"{PREFIX}.kv_events.{worker_id}"


def kv_snapshot(worker_id: str) -> str:
    """Requests that one worker or kvstore publish all it holds on `kv_events` (publish)."""
    return f"{PREFIX}.kv_snapshot.{worker_id}"
