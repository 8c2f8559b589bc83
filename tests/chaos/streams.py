"""One streamed completion as its client sees it: text, ends, the longest silence, how it failed."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp

CONNECT_SECONDS = 5.0
MAX_LINE_BYTES = 1 << 20


class Outcome(StrEnum):
    """How a stream ended."""

    OK = "ok"
    REFUSED = "refused"  # told to come back, or not let in, before anything was answered
    BROKEN = "broken"  # the connection ended without [DONE]
    FAILED = "failed"  # an error, or an end that is not exactly one
    HUNG = "hung"  # silent for longer than its limit, and not over
    WRONG = "wrong"  # other text than undisturbed
    ABORTED = "aborted"  # by its client, on purpose


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked."""

    text: str
    max_tokens: int
    num_choices: int = 1


@dataclass(slots=True, eq=False)
class Stream:
    """A stream in flight, then its record. Times are of the monotonic clock."""

    prompt: Prompt
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, list[str]] = field(default_factory=dict)
    num_tokens: int = 0  # of all choices, from the usage
    num_chunks: int = 0
    longest_gap: float = 0.0  # seconds, the wait for the first chunk included
    is_done: bool = False  # [DONE] came, once
    request_id: str = ""
    error: str = ""
    outcome: Outcome | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _heard: float = 0.0

    def hear(self) -> None:
        """Something came."""
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - (self._heard or self.started))
        self._heard = now

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Close the record; the silence up to now counts."""
        self.hear()
        self.ended = time.monotonic()
        self.outcome, self.error = outcome, error
        self.over.set()

    def as_dict(self, expected: str | None) -> dict[str, Any]:
        """What a person needs to look into a bad one."""
        text = self.texts.get(0, "")
        first = _first_difference(text, expected or "")
        return {
            "outcome": str(self.outcome),
            "error": self.error,
            "request_id": self.request_id,
            "seconds": round(self.ended - self.started, 2),
            "longest_gap_seconds": round(self.longest_gap, 2),
            "chunks": self.num_chunks,
            "finishes": self.finishes,
            "differs_at_character": first,
            "got": text[first : first + 40],
            "expected": (expected or "")[first : first + 40],
        }


async def ask(
    session: aiohttp.ClientSession, url: str, model: str, stream: Stream, *, silence: float
) -> None:
    """Take the stream to its end, whatever that is; it may be silent for `silence` seconds.

    Silence and no total time: a stream that is slow because the machine is busy does not hang.
    """
    try:
        async with asyncio.timeout(silence) as limit:
            await _read(session, url, model, stream, limit, silence)
    except TimeoutError:
        stream.end(Outcome.HUNG, f"not a word for {silence:g} s")
    except aiohttp.ClientConnectorError as error:
        stream.end(Outcome.REFUSED, f"{error}")
    except (aiohttp.ClientError, OSError) as error:
        stream.end(Outcome.BROKEN, f"{type(error).__name__}: {error}")
    except asyncio.CancelledError:
        stream.end(Outcome.ABORTED)
        raise


async def _read(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    stream: Stream,
    limit: asyncio.Timeout,
    silence: float,
) -> None:
    body = {
        "model": model,
        "prompt": stream.prompt.text,
        "max_tokens": stream.prompt.max_tokens,
        "n": stream.prompt.num_choices,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{url}/v1/completions", json=body) as response:
        stream.request_id = response.headers.get("x-request-id", "")
        if response.status != 200:
            text = (await response.text())[:300]
            can_return = response.status in (429, 503) and "Retry-After" in response.headers
            outcome = Outcome.REFUSED if can_return else Outcome.FAILED
            stream.end(outcome, f"{response.status}: {text}")
            return
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            stream.hear()
            limit.reschedule(asyncio.get_running_loop().time() + silence)
            if line.strip() == b"data: [DONE]":
                if stream.is_done:
                    stream.error = "a second [DONE]"
                stream.is_done = True
            else:
                _take(stream, json.loads(line[6:]))
    stream.end(*_verdict(stream))


def _take(stream: Stream, chunk: dict[str, Any]) -> None:
    stream.num_chunks += 1
    if "error" in chunk:
        stream.error = json.dumps(chunk["error"])[:300]
        return
    for choice in chunk["choices"]:
        index = choice["index"]
        stream.texts[index] = stream.texts.get(index, "") + choice["text"]
        if choice["finish_reason"]:
            stream.finishes.setdefault(index, []).append(choice["finish_reason"])
    if chunk.get("usage"):
        stream.num_tokens += chunk["usage"]["completion_tokens"]


def _verdict(stream: Stream) -> tuple[Outcome, str]:
    """Exactly one end of every choice, one [DONE], one usage, and no error."""
    if stream.error:
        return Outcome.FAILED, stream.error
    if not stream.is_done:
        return Outcome.BROKEN, "the connection ended without [DONE]"
    wanted = {index: ["length"] for index in range(stream.prompt.num_choices)}
    if stream.finishes != wanted:
        return Outcome.FAILED, f"finish reasons {stream.finishes}, expected {wanted}"
    num_tokens = stream.prompt.max_tokens * stream.prompt.num_choices
    if stream.num_tokens != num_tokens:
        return Outcome.FAILED, f"usage says {stream.num_tokens} tokens, expected {num_tokens}"
    return Outcome.OK, ""


def _first_difference(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    equal = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), equal)
