"""Whether the ledger agrees with what clients received, stream by stream.

Knows rows and counts. Knows no process and no network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_EXAMPLES = 10
MAX_KNOWN_UNBILLED = 0.05
"""Of what orphans had long before: a worker that took one over, and is killed in its first second,
has said nothing of what the one before it said too late."""


class End(StrEnum):
    """How a stream ended, as its client saw it."""

    DONE = "done"  # [DONE] came
    FAILED = "failed"  # an error that the gateway wrote
    REFUSED = "refused"  # before anything was answered
    BROKEN = "broken"  # its gateway died


@dataclass(slots=True, eq=False)
class Receivings:
    """What one client received.

    `is_orphan`: its gateway and every worker were killed together while it ran, or before its end
    was on the gateway's disk, so that it is known how far it got but for about a second.
    `num_known`: tokens that it had long before.
    """

    request_id: str = ""
    num_tokens: int = 0
    end: End | None = None
    detail: str = ""
    is_orphan: bool = False
    num_known: int = 0
    url: str = ""  # of its gateway
    ended_at: float = 0.0  # by the monotonic clock
    token_times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What was found; `problems` is empty if the ledger is right."""

    counts: dict[str, int] = field(default_factory=dict)
    num_received: int = 0  # tokens, of streams that ended with a word of their gateway
    num_billed: int = 0  # of the same streams
    num_received_broken: int = 0
    num_billed_broken: int = 0
    num_published_broken: int = 0
    num_unbilled: int = 0  # tokens of orphans that nobody knows of
    num_known: int = 0  # tokens that orphans had long before
    num_known_unbilled: int = 0  # of those
    problems: list[str] = field(default_factory=list)

    def count(self, name: str) -> None:
        """One more of these."""
        self.counts[name] = self.counts.get(name, 0) + 1


def judge(
    streams: Sequence[Receivings], rows: Mapping[str, Any], published: Mapping[str, int]
) -> Verdict:
    """Compare.

    Args:
        streams: of all clients.
        rows: of the ledger, by request: outcome, output_tokens, closed_unix_seconds.
        published: tokens that workers say they published, by request.
    """
    verdict = Verdict()
    for stream in streams:
        assert stream.end is not None
        verdict.count(str(stream.end))
        row = rows.get(stream.request_id)
        if row is not None:
            verdict.count(f"row {row['outcome'] or 'open'}")
        if problem := _problem(stream, row, published.get(stream.request_id, 0), verdict):
            verdict.problems.append(f"{stream.request_id or 'no id'}, {stream.end}: {problem}")
    if verdict.num_known_unbilled > MAX_KNOWN_UNBILLED * verdict.num_known:
        verdict.problems.append(
            f"{verdict.num_known_unbilled} of {verdict.num_known} tokens that orphans had long "
            "before are billed to nobody"
        )
    known = {stream.request_id for stream in streams}
    for request_id, row in rows.items():
        if request_id in known:
            continue
        verdict.count("row of a client that had no answer yet")
        if row["closed_unix_seconds"] is None:
            verdict.problems.append(f"{request_id}, no answer: open")
        elif row["output_tokens"] > published.get(request_id, 0):
            verdict.problems.append(f"{request_id}, no answer: {row['output_tokens']} billed")
    return verdict


def _problem(
    stream: Receivings, row: Any | None, num_published: int, verdict: Verdict
) -> str | None:
    if row is None:
        is_begun = stream.end is End.DONE or stream.num_tokens
        return "not in the ledger" if is_begun else None
    if row["closed_unix_seconds"] is None:
        return "open"
    billed, received = row["output_tokens"], stream.num_tokens
    is_told = stream.end is not End.BROKEN
    if is_told and (billed == received or not stream.is_orphan):
        verdict.num_received += received
        verdict.num_billed += billed
        return None if billed == received else f"{billed} tokens billed, {received} received"
    if stream.is_orphan:
        verdict.num_known += stream.num_known
        verdict.num_known_unbilled += max(0, stream.num_known - billed)
    if stream.is_orphan and billed < received:
        verdict.num_unbilled += received - billed
        verdict.count("orphan")
        return None
    if is_told:
        return f"{billed} tokens billed, {received} received"
    verdict.num_received_broken += received
    verdict.num_billed_broken += billed
    verdict.num_published_broken += max(billed, num_published)
    if received <= billed <= max(num_published, received):
        return None
    return f"{billed} tokens billed, {received} received, {num_published} published"
