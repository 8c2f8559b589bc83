"""One streamed request and what was seen of it. Knows HTTP, SSE, OpenAI chunks; no averages."""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from pagoda_cli.endpoint import Endpoint
from pagoda_cli.sse import CutStreamError, SseError, read_chunks

MAX_MESSAGE_CHARS = 200
CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(slots=True)
class Outcome:
    """What one request came to. Times are seconds since it was due."""

    failure: str = ""  # kind of failure; empty = complete
    message: str = ""
    ttft_seconds: float | None = None
    e2e_seconds: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_events: int = 0  # that carried text
    counted_by: str = ""  # usage | tokenizer | events
    gaps_seconds: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def tpot_seconds(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); None for a single token."""
        if self.ttft_seconds is None or self.num_output_tokens < 2:
            return None
        return (self.e2e_seconds - self.ttft_seconds) / (self.num_output_tokens - 1)


class RequestClient:
    """Sends requests to one endpoint and times them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        *,
        path: str,
        timeout_seconds: float,
        count_tokens: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session = session
        self._url = f"{endpoint.base_url}/{path}"
        self._headers = endpoint.headers
        self._timeout = aiohttp.ClientTimeout(
            total=timeout_seconds, sock_connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds)
        )
        self._count_tokens = count_tokens
        self._clock = clock

    async def send(self, body: bytes, *, start: float | None = None) -> Outcome:
        """Send `body` and read its stream to the end; failures are outcomes, not exceptions.

        `start` is when the request was due by this client's clock (now if None).
        """
        outcome = Outcome()
        reader = _StreamReader(outcome, self._clock() if start is None else start, self._clock)
        try:
            await self._read(body, reader)
        except TimeoutError:
            outcome.failure = "timeout"
            outcome.message = f"no end within {self._timeout.total} s"
        except aiohttp.ClientConnectorError as error:
            outcome.failure, outcome.message = "connect", str(error)
        except (aiohttp.ClientError, OSError) as error:
            outcome.failure, outcome.message = "disconnected", f"{type(error).__name__}: {error}"
        except CutStreamError as error:
            if not outcome.failure:  # a stream may end so after its error event
                outcome.failure, outcome.message = "disconnected", str(error)
        except (SseError, ValueError, TypeError, AttributeError) as error:
            # Not JSON, or JSON of another shape than OpenAI's: the server's fault, whatever raised.
            outcome.failure, outcome.message = "bad_stream", f"{type(error).__name__}: {error}"
        outcome.message = outcome.message[:MAX_MESSAGE_CHARS]
        reader.finish(self._count_tokens)
        return outcome

    async def _read(self, body: bytes, reader: "_StreamReader") -> None:
        outcome = reader.outcome
        async with self._session.post(
            self._url, data=body, headers=self._headers, timeout=self._timeout
        ) as response:
            if response.status != 200:
                outcome.failure = f"http_{response.status}"
                text = await response.content.read(16 * MAX_MESSAGE_CHARS)
                outcome.message = text.decode(errors="replace")
                return
            async for chunk in read_chunks(response):
                reader.take(chunk)


class _StreamReader:
    """Follows one stream's chunks."""

    __slots__ = (
        "_clock",
        "_first",
        "_is_length",
        "_last",
        "_start",
        "_texts",
        "outcome",
    )

    def __init__(self, outcome: Outcome, start: float, clock: Callable[[], float]) -> None:
        self.outcome = outcome
        self._start = start
        self._clock = clock
        self._first: float | None = None
        self._last = start
        self._texts: list[str] = []

    def take(self, chunk: dict[str, Any]) -> None:
        """Note one event."""
        outcome = self.outcome
        if error := chunk.get("error"):
            outcome.failure, outcome.message = "error_event", str(error)
            return
        if usage := chunk.get("usage"):
            _take_usage(outcome, usage)
        text = "".join(_text(choice) for choice in chunk.get("choices") or ())
        if not text:
            return
        now = self._clock()
        outcome.num_events += 1
        if self._first is None:
            self._first = now
            outcome.ttft_seconds = now - self._start
        else:
            outcome.gaps_seconds.append(now - self._last)
        self._last = now
        if not outcome.counted_by:
            self._texts.append(text)

    def finish(self, count_tokens: Callable[[str], int] | None) -> None:
        """Note the end of the stream, and count the output where the server did not."""
        outcome = self.outcome
        outcome.e2e_seconds = self._clock() - self._start
        if outcome.failure:
            return
        if outcome.ttft_seconds is None:
            outcome.failure, outcome.message = "empty", "the stream carried no text"
        elif not outcome.counted_by and count_tokens is not None:
            outcome.num_output_tokens = count_tokens("".join(self._texts))
            outcome.counted_by = "tokenizer"
        elif not outcome.counted_by:
            outcome.num_output_tokens, outcome.counted_by = outcome.num_events, "events"


def _text(choice: dict[str, Any]) -> str:
    """Return what a choice of a chunk carries, whichever field it stands in."""
    text = choice.get("text")
    if text is not None:
        return str(text)
    delta = choice.get("delta") or {}
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("refusal")
    if not text and delta.get("tool_calls"):
        text = orjson.dumps(delta["tool_calls"]).decode()
    return text or ""


def _take_usage(outcome: Outcome, usage: dict[str, Any]) -> None:
    outcome.num_prompt_tokens = int(usage.get("prompt_tokens") or 0)
    outcome.num_output_tokens = int(usage.get("completion_tokens") or 0)
    details = usage.get("prompt_tokens_details") or {}
    outcome.num_cached_tokens = int(details.get("cached_tokens") or 0)
    outcome.counted_by = "usage"
