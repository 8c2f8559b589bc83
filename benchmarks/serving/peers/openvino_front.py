"""OpenAI completions over OpenVINO GenAI's continuous batching, for `compare.py`.

Runs in OpenVINO's own environment (openvino-genai, tokenizers, aiohttp), so it imports nothing of
Pagoda. OpenVINO's own server is no Python package; what this front costs says nothing about that
one. It knows greedy and sampled completions, streamed or not, and nothing else.

    python -P openvino_front.py --model EXPORTED --tokenizer tokenizer.json --name bench --port 8105
"""

import argparse
import asyncio
import itertools
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import openvino
import openvino_genai
from aiohttp import web
from tokenizers import Tokenizer

MAX_BODY_BYTES = 64 << 20
MAX_BATCHED_TOKENS = 2048
WINDOW_TOKENS = 16  # decoded again with each new token, so that words keep their spaces
OVERLAP_TOKENS = 4


class Engine:
    """The pipeline and the one thread that steps it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = arguments.cache_gib
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_seqs = arguments.max_num_seqs
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            arguments.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": arguments.threads}
        )
        self._inbox: queue.SimpleQueue[tuple[list[int], Any, Callable[..., None]]] = (
            queue.SimpleQueue()
        )
        self._names = itertools.count()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to step; results go to `loop`."""
        threading.Thread(target=self._run, args=(loop,), daemon=True).start()

    async def generate(
        self, prompt: list[int], config: Any
    ) -> AsyncIterator[tuple[list[int], bool]]:
        """Yield new tokens, and whether they are the last."""
        results: asyncio.Queue[tuple[list[int], bool]] = asyncio.Queue()
        self._inbox.put((prompt, config, lambda *result: results.put_nowait(result)))
        is_done = False
        while not is_done:
            new, is_done = await results.get()
            yield new, is_done

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        live: dict[int, tuple[Any, Callable[..., None]]] = {}
        while True:
            self._admit(live)
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            calls = []
            for name, (handle, give) in list(live.items()):
                new = []
                while handle.can_read():
                    for output in handle.read().values():
                        new += list(output.generated_ids)
                is_done = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
                if new or is_done:
                    calls.append((give, new, is_done))
                if is_done:
                    del live[name]
            if calls:  # one wake-up a step
                loop.call_soon_threadsafe(deliver, calls)

    def _admit(self, live: dict[int, tuple[Any, Callable[..., None]]]) -> None:
        """Take all that wait; wait for one where nothing runs."""
        may_wait = not live
        while True:
            try:
                prompt, config, give = self._inbox.get(block=may_wait)
            except queue.Empty:
                return
            may_wait = False
            name = next(self._names)
            tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
            live[name] = (self._pipeline.add_request(name, tensor, config), give)


def deliver(calls: list[tuple[Callable[..., None], list[int], bool]]) -> None:
    """Give each request its tokens."""
    for give, new, is_done in calls:
        give(new, is_done)


class Text:
    """Text of a growing list of tokens, without half characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # of the window
        self._sent = ""  # of the window's text

    @property
    def num_tokens(self) -> int:
        """How many tokens came."""
        return len(self._ids)

    def add(self, new: list[int], is_last: bool) -> str:
        """Return what may be shown now and was not before."""
        self._ids += new
        text = self._decode()
        if text.endswith("\ufffd") and not is_last:
            return ""
        piece = text[len(self._sent) :]
        self._sent = text
        if len(self._ids) - self._start > WINDOW_TOKENS:
            self._start = len(self._ids) - OVERLAP_TOKENS
            self._sent = self._decode()
        return piece

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._ids[self._start :], skip_special_tokens=False))


class Front:
    """The HTTP side."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._name = arguments.name
        self._tokenizer = Tokenizer.from_file(arguments.tokenizer)
        self._eos = self._tokenizer.token_to_id(arguments.eos)
        self._engine = Engine(arguments)

    def application(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.on_startup.append(self._start)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        return app

    async def _start(self, app: web.Application) -> None:
        self._engine.start(asyncio.get_running_loop())

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._name}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        config, text = self._config(body), Text(self._tokenizer)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        is_streamed = bool(body.get("stream"))
        if is_streamed:
            await stream.prepare(request)
        whole = []
        async for new, is_last in self._engine.generate(prompt, config):
            piece = text.add(new, is_last)
            whole.append(piece)
            if piece and is_streamed:
                await stream.write(event(self._answer(piece)))
        reason = "length" if text.num_tokens >= config.max_new_tokens else "stop"
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": text.num_tokens,
            "total_tokens": len(prompt) + text.num_tokens,
        }
        last = self._answer("" if is_streamed else "".join(whole), reason) | {"usage": usage}
        if not is_streamed:
            return web.json_response(last)
        await stream.write(event(last) + b"data: [DONE]\n\n")
        await stream.write_eof()
        return stream

    def _config(self, body: dict[str, Any]) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = body.get("max_tokens", 16)
        config.ignore_eos = bool(body.get("ignore_eos"))
        config.eos_token_id = self._eos
        if not config.ignore_eos:
            config.stop_token_ids = {self._eos}
        temperature = body.get("temperature", 1.0)
        config.do_sample = temperature > 0
        if config.do_sample:
            config.temperature = temperature
        return config

    def _answer(self, text: str, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "finish_reason": reason}
        return {"object": "text_completion", "model": self._name, "choices": [choice]}


def event(content: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def main() -> None:
    """Serve until the process is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--eos", default="<|end|>")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-gib", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    arguments = parser.parse_args()
    web.run_app(Front(arguments).application(), host="127.0.0.1", port=arguments.port, print=None)


if __name__ == "__main__":
    main()
