"""Whether the ledger agrees with what clients received, stream by stream.

Knows rows and counts. Knows no process and no network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_UNSURE = 2
"""Tokens of the event that a gateway was about to write, or to note, when it was killed."""


class End(StrEnum):
    """How a stream ended, as its client saw it."""

    DONE = "done"  # [DONE] came
    FAILED = "failed"  # an error that the gateway wrote
    REFUSED = "refused"  # before anything was answered
    BROKEN = "broken"  # its gateway died


@dataclass(slots=True, eq=False)
class Receivings:
    """What one client received."""

    request_id: str = ""
    num_tokens: int = 0
    end: End | None = None
    detail: str = ""


@dataclass(slots=True)
class Verdict:
    """What was found; `problems` is empty if the ledger is right."""

    counts: dict[str, int] = field(default_factory=dict)
    num_received: int = 0  # tokens, of streams whose accounts their gateways closed
    num_billed: int = 0  # of the same streams
    num_received_broken: int = 0  # of others: their gateways were killed
    num_billed_broken: int = 0
    num_published_broken: int = 0
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
    known = {stream.request_id for stream in streams}
    for request_id, row in rows.items():
        if request_id in known:
            continue
        verdict.count("row of a client that had no answer yet")
        if row["closed_unix_seconds"] is None:
            verdict.problems.append(f"{request_id}, no answer: open")
        elif row["output_tokens"] > MAX_UNSURE:
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
    if stream.end is End.BROKEN or row["outcome"] == "reconciled":
        verdict.num_received_broken += received
        verdict.num_billed_broken += billed
        verdict.num_published_broken += max(billed, num_published)
        max_unsure = MAX_UNSURE
    else:
        verdict.num_received += received
        verdict.num_billed += billed
        max_unsure = 0
    if abs(billed - received) <= max_unsure:
        return None
    return f"{billed} tokens billed, {received} received, {num_published} published"
