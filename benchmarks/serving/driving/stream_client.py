"""Streams at little cost to the client: through a gateway, and straight from the bus.

Both use the same clock, so that their difference is the gateway. Answers are parsed when the load
is over.
"""

import asyncio
import bisect
import itertools
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, route_pb2
from pagoda_cli.endpoint import Endpoint
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

MARK = b"data: "
END = b"data: [DONE]\n\n"
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """A closed loop of streams.

    Attributes:
        num_streams: at a time.
        num_requests: in all.
        num_tokens: of each answer.
        seconds: an answer takes; over so long the streams begin, one after the other.
    """

    num_streams: int
    num_requests: int
    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer: when it was asked for, and what came when (`time.perf_counter`)."""

    started: float
    pieces: tuple[tuple[float, bytes], ...]

    def events(self) -> list[tuple[float, dict[str, Any]]]:
        """Return its events, each with the time of its last byte."""
        ends = list(itertools.accumulate(len(data) for _, data in self.pieces))
        whole = b"".join(data for _, data in self.pieces)
        found = []
        start = whole.find(MARK)
        while start >= 0 and not whole.startswith(END, start):
            end = whole.index(b"\n\n", start)
            when = self.pieces[bisect.bisect_left(ends, end + 2)][0]
            found.append((when, orjson.loads(whole[start + len(MARK) : end])))
            start = whole.find(MARK, end)
        return found


@dataclass(slots=True)
class Times:
    """What one run saw.

    Attributes:
        ttft: request sent to first token, seconds, each.
        answers: of the gateway, whole ones.
        num_failed: requests that ended otherwise than wanted.
    """

    ttft: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    num_failed: int = 0


class GatewayStream(asyncio.Protocol):
    """One connection that asks again as long as it may. Reads nothing while it runs but the end."""

    def __init__(self, request: bytes, times: Times, budget: "count[int]", limit: int) -> None:
        """Send `request` until `budget` has counted to `limit`; note into `times`."""
        self._request = request
        self._times = times
        self._budget = budget
        self._limit = limit
        self._pieces: list[tuple[float, bytes]] = []
        self._started = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if something was still to come."""
        if not self.done.done():
            self._times.num_failed += 1
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Keep it; ask again at the end."""
        self._pieces.append((time.perf_counter(), data))
        if data.endswith(b"0\r\n\r\n") or not self._pieces[0][1].startswith(b"HTTP/1.1 200"):
            self._end()

    def _end(self) -> None:
        if self._pieces[0][1].startswith(b"HTTP/1.1 200"):
            self._times.answers.append(Answer(self._started, tuple(self._pieces)))
        else:
            self._times.num_failed += 1
        self._ask()

    def _ask(self) -> None:
        if next(self._budget) >= self._limit:
            self.done.set_result(None)
            self._transport.close()
            return
        self._pieces = []
        self._started = time.perf_counter()
        self._transport.write(self._request)


async def through_gateway(endpoint: Endpoint, prompt: list[int], load: StreamLoad) -> Times:
    """Run the load against the gateway, as completions."""
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True}
    return await through_http(endpoint, "completions", body, load)


async def through_http(
    endpoint: Endpoint, path: str, request: dict[str, Any], load: StreamLoad
) -> Times:
    """Run the load against a server, with one request again and again.

    Args:
        endpoint: of the server.
        path: behind the endpoint's.
        request: all but the model, the number of tokens and that it streams.
        load: how many.
    """
    body = orjson.dumps(
        {**request, "model": endpoint.model, "max_tokens": load.num_tokens, "stream": True}
    )
    host, _, port = endpoint.base_url.removeprefix("http://").partition("/")[0].partition(":")
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nhost: {host}\r\n"
        f"authorization: Bearer {endpoint.api_key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    times, budget = Times(), count()
    loop = asyncio.get_running_loop()
    streams = []
    for _ in range(load.num_streams):
        await asyncio.sleep(load.seconds / load.num_streams)
        _, stream = await loop.create_connection(
            lambda: GatewayStream(head.encode() + body, times, budget, load.num_requests),
            host,
            int(port),
        )
        streams.append(stream)
    async with asyncio.timeout(SECONDS + load.num_requests / load.num_streams * SECONDS):
        await asyncio.gather(*(stream.done for stream in streams))
    return times


def token_times(events: list[tuple[float, dict[str, Any]]], num_chars: list[int]) -> list[float]:
    """Return when each token's text was there; `num_chars` after each token, of the same tokens."""
    times: list[float] = []
    so_far = 0
    for when, event in events:
        so_far += len(event["choices"][0]["text"])
        times += [when] * (bisect.bisect_right(num_chars, so_far) - len(times))
    return times


class BusClient:
    """Speaks to the null worker as a gateway does, with nothing around it."""

    def __init__(self, bus: Bus, *, model: str) -> None:
        self._bus = bus
        self._model = model
        self._first: dict[str, float] = {}
        self._ended: dict[str, asyncio.Future[None]] = {}

    async def run(self, prompt: list[int], load: StreamLoad) -> Times:
        """Run the load."""
        times, budget = Times(), count()
        subscription = await self._bus.subscribe(
            subjects.frames("bench"), generate_pb2.FramesMessage, self._on_frames
        )

        async def loop() -> None:
            while (number := next(budget)) < load.num_requests:
                await self._one(str(number), prompt, load.num_tokens, times)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(load.num_streams):
                await asyncio.sleep(load.seconds / load.num_streams)
                tasks.create_task(loop())
        await subscription.unsubscribe()
        return times

    async def _one(self, name: str, prompt: list[int], num_tokens: int, times: Times) -> None:
        ended = self._ended[name] = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        placed = await self._bus.request(
            subjects.route(self._model),
            route_pb2.RouteRequest(request_id=name, num_prompt_tokens=len(prompt)),
            route_pb2.RouteResponse,
            timeout_seconds=SECONDS,
        )
        await self._bus.request(
            subjects.decode(placed.decode_worker_id),
            generate_pb2.GenerateRequest(
                request_id=name,
                gateway_id="bench",
                prompt_token_ids=prompt,
                sampling=generate_pb2.SamplingParams(max_tokens=num_tokens),
            ),
            generate_pb2.GenerateResponse,
            timeout_seconds=SECONDS,
        )
        async with asyncio.timeout(SECONDS):
            await ended
        times.ttft.append(self._first[name] - started)

    async def _on_frames(self, message: generate_pb2.FramesMessage, _context: Context) -> None:
        now = time.perf_counter()
        for frame in message.frames:
            self._first.setdefault(frame.request_id, now)
            if frame.finish_reason:
                self._ended.pop(frame.request_id).set_result(None)


class FrameWatch:
    """Hears the frames that go to every gateway, to compare with what clients get."""

    def __init__(self) -> None:
        self.arrivals: dict[str, list[float]] = {}

    async def on_frames(self, message: generate_pb2.FramesMessage, _context: Context) -> None:
        """Note when each token was on the bus, by request id."""
        now = time.perf_counter()
        for frame in message.frames:
            self.arrivals.setdefault(frame.request_id, []).append(now)
