"""The cases by name: which faults, and what a client may see of them.

The rows r1 to r13 are of the reliability figures that Pagoda holds itself to; the others are one
process each, and `mixed` takes all of them in random order.
"""

from dataclasses import dataclass

from chaos.faults import Action, Fault

WORKERS = ("decode", "prefill")
BEHIND = ("router", "kvstore", "redis", "nats")


@dataclass(frozen=True, slots=True)
class Case:
    """Faults to go through in turn, and what is allowed beside streams that end well.

    A refusal is a 503 with Retry-After, or no connection: nothing was begun, asking again helps.
    """

    name: str
    about: str
    faults: tuple[Fault, ...]
    max_refused_seconds: float = 0.0  # after the fault; 0: no refusal at all
    may_break: bool = False  # connections: the process that holds them is the one that dies
    max_gap_seconds: float = 15.0  # silence within a stream
    num_dropped: int = 0  # instead of faults: streams that their clients drop at once


def _each(action: Action, *roles: str) -> tuple[Fault, ...]:
    return tuple(Fault(action, role) for role in roles)


def _three(role: str) -> tuple[Fault, ...]:
    return tuple(Fault(action, role) for action in (Action.KILL, Action.PAUSE, Action.TERM))


GATEWAY_BACK_SECONDS = 15.0  # until it is up again: there is no second one
NATS_BACK_SECONDS = 3.0
NATS_AWAKE_SECONDS = 10.0  # its pauses are as long as the deadlines of requests

CASES = {
    case.name: case
    for case in (
        Case("calm", "no fault: the control", _each(Action.NONE, "")),
        Case("r1", "kill -9 a decode worker", _each(Action.KILL, "decode"), max_gap_seconds=5),
        Case("r3", "kill -9 a prefill worker", _each(Action.KILL, "prefill")),
        Case("r4", "a worker stops, and wakes later", _each(Action.PAUSE, *WORKERS)),
        Case(
            "r5",
            "kill -9 the gateway: its own connections only",
            _each(Action.KILL, "gateway"),
            max_refused_seconds=GATEWAY_BACK_SECONDS,
            may_break=True,
        ),
        Case(
            "r6",
            "kill -9 the router",
            _each(Action.KILL, "router"),
        ),
        Case("r7", "damaged NVMe segments, kill -9 the kvstore", _each(Action.DAMAGE, "kvstore")),
        Case("r10", "Redis accepts and never answers", _each(Action.PAUSE, "redis")),
        Case("r12", "200 streams dropped at once", (), num_dropped=200),
        Case(
            "r13",
            "SIGTERM, one process after the other",
            _each(Action.TERM, *WORKERS, *BEHIND, "gateway"),
            max_refused_seconds=GATEWAY_BACK_SECONDS,
        ),
        Case("decode", "every fault of a decode worker", _three("decode")),
        Case("prefill", "every fault of a prefill worker", _three("prefill")),
        Case("kvstore", "every fault of the kvstore", _three("kvstore")),
        Case("redis", "every fault of Redis", _three("redis")),
        Case("router", "every fault of the router", _three("router")),
        Case(
            "nats",
            "kill -9 NATS",
            _each(Action.KILL, "nats"),
            max_refused_seconds=NATS_BACK_SECONDS,
        ),
        Case(
            "nats-slow",
            "NATS stops and wakes, or is restarted",
            (Fault(Action.PAUSE, "nats"), Fault(Action.TERM, "nats")),
            max_refused_seconds=NATS_AWAKE_SECONDS,
        ),
        Case(
            "short",
            "one fault of each kind: what `make test` runs",
            (
                *_each(Action.KILL, *WORKERS, *BEHIND),
                *_each(Action.PAUSE, "decode", "redis"),
                *_each(Action.TERM, "kvstore"),
            ),
            max_refused_seconds=NATS_BACK_SECONDS,
        ),
        Case(
            "mixed",
            "any fault of any process but the gateway, in random order",
            tuple(fault for role in (*WORKERS, *BEHIND) for fault in _three(role)),
            max_refused_seconds=NATS_AWAKE_SECONDS,
        ),
    )
}
