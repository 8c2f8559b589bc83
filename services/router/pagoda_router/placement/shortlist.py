"""Which workers of one side are worth pairing with those of the other.

What cannot be part of a best plan is left out, and of very many climbers some. Knows no request and
no prefix.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pagoda_router.placement.eligibility import Eligibility
from pagoda_router.workers.snapshot import WorkerSnapshot

# Of each side: the cheapest, and then those that no cheaper one equals in what pays off in a pair.
NUM_CHEAPEST = 8
MAX_SHORTLISTED = 16


class Side(Protocol):
    """One worker's part in a plan."""

    @property
    def worker(self) -> WorkerSnapshot:
        """Who."""
        ...

    @property
    def eligibility(self) -> Eligibility:
        """Whether it may."""
        ...

    @property
    def draw(self) -> bytes:
        """Its place among equals; see `draw`."""
        ...


S = TypeVar("S", bound=Side)


def draw(request_id: str, worker_id: str) -> bytes:
    """Return a worker's place among equally good ones, for one request.

    Every replica draws the same, whatever order it heard of the workers in; different requests
    start at different workers.
    """
    return hashlib.blake2b(f"{request_id}|{worker_id}".encode(), digest_size=8).digest()


def shortlist(
    sides: Sequence[S], cost_ms: Callable[[S], float], *gains: Callable[[S], float]
) -> list[S]:
    """Return the cheapest, and whoever beats all that are cheaper in one of the `gains`.

    A side that is neither cheaper nor better in any gain than another one makes no better plan with
    anybody. So the best pair is among the pairs of two shortlists, unless more climb than are
    taken, and the worker with the longest prefix is on one however long its queue is.

    Args:
        sides: one for each worker.
        cost_ms: what a side costs in every plan.
        gains: what pays off depending on the other side; more is better.
    """
    ordered = sorted(
        sides, key=lambda side: (side.eligibility.rank, round(cost_ms(side), 3), side.draw)
    )
    chosen = ordered[:NUM_CHEAPEST]
    extra: dict[int, S] = {}
    for gain in gains:
        most = max(map(gain, chosen), default=0.0)
        climbing = []
        for position, side in enumerate(ordered[NUM_CHEAPEST:]):
            if gain(side) > most:
                most = gain(side)
                climbing.append((position, side))
        # Most of them at most a few; where there are many, those with the largest gain count.
        room = (MAX_SHORTLISTED - NUM_CHEAPEST) // len(gains)
        extra.update(climbing[-room:])
    return chosen + list(extra.values())
