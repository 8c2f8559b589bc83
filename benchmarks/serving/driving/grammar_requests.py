"""What a grammar costs a request: TTFT and time per token without one, with a cached and a new one.

Requests go to one or more endpoints one at a time, all kinds and endpoints in turns, so that all of
them see the same machine.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp
import orjson
import uvloop

from pagoda_cli.bench.client import Outcome, RequestClient
from pagoda_cli.endpoint import Endpoint, first_model

MAX_TOKENS = 64
REQUEST_SECONDS = 60.0
QUESTION = [{"role": "user", "content": "What news from the battle, good my lord?"}]
KINDS = ("no grammar", "grammar, cached", "grammar, cold")
COLUMNS = (
    "server", "kind", "TTFT p50 ms", "p99", "per token p50 ms", "per step p50 ms",
    "TTFT added ms", "per step added ms", "tokens", "failed",
)  # fmt: skip


@dataclass(slots=True)
class KindTimes:
    """What the requests of one kind to one server saw; times in ms."""

    ttft: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    per_step: list[float] = field(default_factory=list)  # between two events that carried text
    num_tokens: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Take one request."""
        if outcome.failure or outcome.ttft_seconds is None:
            self.failures.append(f"{outcome.failure}: {outcome.message}")
            return
        self.ttft.append(1e3 * outcome.ttft_seconds)
        self.num_tokens.append(outcome.num_output_tokens)
        if outcome.tpot_seconds is not None:
            self.per_token.append(1e3 * outcome.tpot_seconds)
        if outcome.gaps_seconds:
            self.per_step.append(1e3 * median(outcome.gaps_seconds))

    def summary(self) -> dict[str, Any]:
        """Return plain types, for JSON; percentiles are None where nothing succeeded."""
        return {
            "ttft_ms": percentiles(self.ttft),
            "per_token_ms": percentiles(self.per_token),
            "per_step_ms": percentiles(self.per_step),
            "tokens_p50": median(self.num_tokens) if self.num_tokens else None,
            "num_ok": len(self.ttft),
            "num_failed": len(self.failures),
            "failure_examples": sorted(set(self.failures))[:3],
            "values": {
                "ttft_ms": self.ttft,
                "per_token_ms": self.per_token,
                "per_step_ms": self.per_step,
            },
        }


Found = dict[str, dict[str, KindTimes]]  # by server, by kind


def schema(salt: int = 0) -> dict[str, Any]:
    """Return a schema of usual size; another salt makes it another grammar."""
    return {
        "type": "object",
        "title": f"news {salt}",
        "properties": {
            "mood": {"enum": ["merry", "grave", f"mood{salt}"]},
            "losses": {"type": "integer", "minimum": 0, "maximum": 99999},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "place": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
                "required": ["city", "day"],
                "additionalProperties": False,
            },
        },
        "required": ["mood", "losses", "names", "place"],
        "additionalProperties": False,
    }


def kinds(salt: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kinds of requests of one round; `salt` names the grammar that is new in it."""
    # It runs as long as the others may: short answers would say little about a token.
    yield "no grammar", {"ignore_eos": True}
    for name, number in (("grammar, cached", 0), ("grammar, cold", salt)):
        wanted = {"name": "news", "schema": schema(number)}
        yield name, {"response_format": {"type": "json_schema", "json_schema": wanted}}


def measure(endpoints: Mapping[str, Endpoint], *, repeats: int, seed: int) -> Found:
    """Ask every endpoint for every kind `repeats` times, in turns."""
    return uvloop.run(_measure(endpoints, repeats, seed))


async def _measure(endpoints: Mapping[str, Endpoint], repeats: int, seed: int) -> Found:
    found: Found = {name: {kind: KindTimes() for kind in KINDS} for name in endpoints}
    async with aiohttp.ClientSession() as session:
        clients = {}
        for name, endpoint in endpoints.items():
            async with asyncio.timeout(REQUEST_SECONDS):
                known = endpoint if endpoint.model else await first_model(session, endpoint)
            client = RequestClient(
                session, known, path="chat/completions", timeout_seconds=REQUEST_SECONDS
            )
            clients[name] = (client, known.model)
        for repeat in range(repeats + 1):
            # A salt that no run before this one used, or the grammar would not be new.
            for kind, fields in kinds(salt=1 + seed * 1_000_000 + repeat):
                for name, (client, model) in clients.items():
                    outcome = await client.send(_body(model, fields, seed=repeat))
                    if repeat:  # the first round warms caches
                        found[name][kind].add(outcome)
    return found


def _body(model: str, fields: Mapping[str, Any], *, seed: int) -> bytes:
    return orjson.dumps(
        {
            "model": model, "messages": QUESTION, "max_tokens": MAX_TOKENS, "seed": seed,
            "temperature": 1.0, "stream": True, "stream_options": {"include_usage": True}, **fields,
        }
    )  # fmt: skip


def table(found: Found) -> list[list[str]]:
    """Return the cells of a table, the columns first."""
    rows = [list(COLUMNS)]
    for server, times in found.items():
        for kind in KINDS:
            here, bare = times[kind], times["no grammar"]
            summary = here.summary()
            rows.append(
                [
                    server,
                    kind,
                    _cell(summary["ttft_ms"], "p50"),
                    _cell(summary["ttft_ms"], "p99"),
                    _cell(summary["per_token_ms"], "p50"),
                    _cell(summary["per_step_ms"], "p50"),
                    _added(here.ttft, bare.ttft),
                    _added(here.per_step, bare.per_step),
                    "-" if summary["tokens_p50"] is None else f"{summary['tokens_p50']:.0f}",
                    f"{summary['num_failed']}/{summary['num_failed'] + summary['num_ok']}",
                ]
            )
    return rows


def percentiles(values: list[float]) -> dict[str, float] | None:
    """Return p50, p99 and the largest; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50": median(ordered), "p99": p99, "max": ordered[-1]}


def _cell(summary: dict[str, float] | None, name: str) -> str:
    return "-" if summary is None else f"{summary[name]:.2f}"


def _added(values: list[float], bare: list[float]) -> str:
    return f"{median(values) - median(bare):+.2f}" if values and bare else "-"
