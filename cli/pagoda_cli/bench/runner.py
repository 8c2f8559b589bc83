"""Runs one benchmark: closed loop, Poisson arrivals or a trace, against one endpoint.

Request bodies are made ahead in a thread, a bounded number of them, so that making prompts costs no
latency. Every request has a deadline; a full client counts a failure instead of waiting in silence.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import aiohttp
import orjson

from pagoda_cli.bench.client import Outcome, RequestClient
from pagoda_cli.bench.config import BenchConfig
from pagoda_cli.bench.errors import BenchError
from pagoda_cli.bench.prompts import SyntheticPrompts
from pagoda_cli.bench.results import ResultRecorder, Results
from pagoda_cli.bench.trace_file import read_trace
from pagoda_cli.bench.vocabulary import Vocabulary
from pagoda_cli.bench.workload import PlannedRequest, planned_requests, replayed_requests
from pagoda_cli.endpoint import Endpoint, EndpointError, first_model

_MODELS_TIMEOUT_SECONDS = 30.0
_READ_BUFFER_BYTES = 256 * 1024
_MIN_AHEAD, _MAX_AHEAD = 16, 256

_Prepared: TypeAlias = tuple[PlannedRequest, bytes]


class BenchRun:
    """One run; `recorder` can be watched while it goes on, `stop` ends it early."""

    def __init__(
        self, config: BenchConfig, endpoint: Endpoint, *, on_note: Callable[[str], None] = print
    ) -> None:
        self.config = config
        self.endpoint = endpoint
        self.recorder = ResultRecorder(slo=config.slo)
        self.num_in_flight = 0
        self.num_interrupted = 0
        self.stop = asyncio.Event()
        self.started_at: float | None = None
        self._on_note = on_note

    async def run(self) -> Results:
        """Run to the end, or until `stop` is set: what was then in flight is cut and said.

        Raises:
            BenchError: the run cannot start.
        """
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.config.keep_alive)
        async with aiohttp.ClientSession(
            connector=connector, read_bufsize=_READ_BUFFER_BYTES
        ) as session:
            if not self.endpoint.model:
                self.endpoint = await self._with_first_model(session)
            vocabulary = await self._vocabulary(session)
            prompts = SyntheticPrompts(
                vocabulary,
                seed=self.config.seed,
                num_prefix_tokens=self.config.prefix_tokens,
                send_ids=self.config.send_ids,
                block_scale=self.config.trace_scale,
            )
            client = RequestClient(
                session,
                self.endpoint,
                path=self.config.path,
                timeout_seconds=self.config.timeout_seconds,
                count_tokens=vocabulary.count_tokens,
            )
            await self._warm_up(client, prompts)
            return await self._measure(client, prompts)

    async def _with_first_model(self, session: aiohttp.ClientSession) -> Endpoint:
        try:
            async with asyncio.timeout(_MODELS_TIMEOUT_SECONDS):
                return await first_model(session, self.endpoint)
        except (EndpointError, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(f"cannot ask for the model: {error}; is the server up?") from error

    async def _vocabulary(self, session: aiohttp.ClientSession) -> Vocabulary:
        if self.config.tokenizer is not None:
            return await asyncio.to_thread(Vocabulary.from_tokenizer_file, self.config.tokenizer)
        vocabulary = await Vocabulary.from_server(session, self.endpoint)
        if vocabulary is None:
            vocabulary = Vocabulary.approximate()
        if not vocabulary.is_exact:
            self._on_note(
                "prompt lengths are approximate: no --tokenizer, no exact /tokenize on the server; "
                "the reported prompt tokens are the server's count"
            )
        return vocabulary

    async def _warm_up(self, client: RequestClient, prompts: SyntheticPrompts) -> None:
        """Send a few requests that are not counted.

        Raises:
            BenchError: none of them succeeded, so nothing would be measured.
        """
        outcomes = []
        for index in range(self.config.num_warmup):
            prompt = prompts.warmup_prompt(index, self.config.prompt_tokens.low)
            outcomes.append(await client.send(self._body(prompt, self.config.output_tokens.low)))
        if outcomes and all(outcome.failure for outcome in outcomes):
            last = outcomes[-1]
            raise BenchError(
                f"{self.endpoint.base_url} failed all {len(outcomes)} warm-up requests, "
                f"the last with {last.failure}: {last.message}"
            )

    async def _measure(self, client: RequestClient, prompts: SyntheticPrompts) -> Results:
        cpu_seconds = time.process_time()
        try:
            async with asyncio.TaskGroup() as tasks:
                work = tasks.create_task(self._work(client, prompts))
                watcher = tasks.create_task(self._cancel_on_stop(work))
                work.add_done_callback(lambda _: watcher.cancel())
        except* BenchError as group:
            raise _first(group) from None
        now = time.perf_counter()
        return self.recorder.results(
            now - (self.started_at or now),
            num_interrupted=self.num_interrupted,
            client_cpu_seconds=time.process_time() - cpu_seconds,
        )

    async def _cancel_on_stop(self, work: asyncio.Task[None]) -> None:
        await self.stop.wait()
        self.num_interrupted = self.num_in_flight
        work.cancel()

    async def _work(self, client: RequestClient, prompts: SyntheticPrompts) -> None:
        num_ahead = min(max(2 * (self.config.concurrency or 0), _MIN_AHEAD), _MAX_AHEAD)
        ahead: asyncio.Queue[_Prepared | None] = asyncio.Queue(num_ahead)
        is_filled = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            producer = tasks.create_task(self._prepare(prompts, ahead, is_filled))
            await is_filled.wait()
            self.started_at = time.perf_counter()
            if self.config.concurrency is not None:
                await self._closed_loop(client, ahead, self.config.concurrency)
            else:
                await self._open_loop(client, ahead)
            producer.cancel()

    async def _prepare(
        self,
        prompts: SyntheticPrompts,
        ahead: "asyncio.Queue[_Prepared | None]",
        is_filled: asyncio.Event,
    ) -> None:
        """Fill `ahead` with request bodies, in order; None ends it."""
        requests = self._planned()
        while (prepared := await asyncio.to_thread(self._next, requests, prompts)) is not None:
            await ahead.put(prepared)
            if ahead.full():
                is_filled.set()
        is_filled.set()
        await ahead.put(None)

    def _planned(self) -> Iterator[PlannedRequest]:
        config = self.config
        if config.trace is not None:
            requests = replayed_requests(
                read_trace(config.trace), speed=config.trace_speed, scale=config.trace_scale
            )
        else:
            requests = planned_requests(
                prompt=config.prompt_tokens,
                output=config.output_tokens,
                seed=config.seed,
                rate=config.rate,
            )
        return itertools.islice(requests, config.num_requests)

    def _next(
        self, requests: Iterator[PlannedRequest], prompts: SyntheticPrompts
    ) -> "_Prepared | None":
        request = next(requests, None)
        if request is None:
            return None
        return request, self._body(prompts.prompt(request), request.num_output_tokens)

    def _body(self, prompt: str | list[int], num_output_tokens: int) -> bytes:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "max_tokens": num_output_tokens,
            "temperature": self.config.temperature,
            "seed": self.config.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.config.api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.config.ignore_eos:
            body["ignore_eos"] = True
        return orjson.dumps(body)

    async def _closed_loop(
        self, client: RequestClient, ahead: "asyncio.Queue[_Prepared | None]", concurrency: int
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(self._closed_client(client, ahead))

    async def _closed_client(
        self, client: RequestClient, ahead: "asyncio.Queue[_Prepared | None]"
    ) -> None:
        while not self._is_over(self._elapsed()):
            prepared = await ahead.get()
            if prepared is None:
                ahead.put_nowait(None)  # for the next client; the place was just freed
                return
            self.num_in_flight += 1
            await self._send(client, prepared[1], start=None)

    async def _open_loop(
        self, client: RequestClient, ahead: "asyncio.Queue[_Prepared | None]"
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            while (prepared := await ahead.get()) is not None:
                request, body = prepared
                due_seconds = request.due_seconds or 0.0
                if self._is_over(due_seconds):
                    return
                await asyncio.sleep(max(0.0, due_seconds - self._elapsed()))
                lag_seconds = self._elapsed() - due_seconds
                self.recorder.max_start_lag_seconds = max(
                    self.recorder.max_start_lag_seconds, lag_seconds
                )
                if self.num_in_flight >= self.config.max_in_flight:
                    message = f"{self.num_in_flight} requests in flight; see --max-in-flight"
                    self.recorder.add(Outcome(failure="client_limit", message=message))
                    continue
                self.num_in_flight += 1
                start = time.perf_counter() - lag_seconds
                tasks.create_task(self._send(client, body, start=start))

    async def _send(self, client: RequestClient, body: bytes, *, start: float | None) -> None:
        """Send one request that was already counted in flight."""
        try:
            outcome = await client.send(body, start=start)
        finally:
            self.num_in_flight -= 1
        self.recorder.add(outcome)

    def _elapsed(self) -> float:
        return time.perf_counter() - (self.started_at or 0.0)

    def _is_over(self, elapsed_seconds: float) -> bool:
        duration = self.config.duration_seconds
        return duration is not None and elapsed_seconds >= duration


def _first(group: BaseExceptionGroup[BenchError]) -> BenchError:
    """Return the first error of a group, however deep it lies."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, BenchError)
    return error
