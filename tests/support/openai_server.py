"""A tiny OpenAI-compatible server for client tests: real HTTP and SSE, scripted behaviour.

The model name says what happens: `echo` answers, `busy` refuses with 429, `cut` hangs up halfway,
`broken` sends an error event, `silent` sends no text, `stuck` never ends.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

START_SECONDS = 60


@dataclass(slots=True)
class OpenAiServer:
    """The running server, and the bodies it was sent (`/chat/completions` and `/completions`)."""

    url: str = ""
    has_tokenize: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    client_ports: list[int] = field(default_factory=list)  # one connection has one port
    is_stuck: threading.Event = field(default_factory=threading.Event)  # a `stuck` request came

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        body = await _read(receive)
        path = scope["path"]
        if path == "/v1/models":
            await _json(send, 200, {"object": "list", "data": [{"id": "echo", "object": "model"}]})
        elif path == "/tokenize" and self.has_tokenize:
            # One token for each word, its id a function of the word.
            tokens = [sum(word.encode()) for word in str(body["prompt"]).split()]
            await _json(send, 200, {"count": len(tokens), "tokens": tokens})
        elif path in ("/v1/chat/completions", "/v1/completions"):
            self.bodies.append(body)
            self.client_ports.append(scope["client"][1])
            if body["model"] == "stuck":
                self.is_stuck.set()
            self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
            await _complete(send, body, is_chat=path.endswith("chat/completions"))
        else:
            await _json(send, 404, {"error": {"message": f"no route {path}", "code": None}})


@contextlib.contextmanager
def openai_server(*, has_tokenize: bool = True) -> Iterator[OpenAiServer]:
    """Serve on a free port of the loopback, in a thread, until the block ends."""
    app = OpenAiServer(has_tokenize=has_tokenize)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    # The socket listens already: the first connection waits in its backlog until the loop runs.
    app.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield app
    finally:
        server.should_exit = server.force_exit = True  # `stuck` requests never end
        thread.join(START_SECONDS)
        listener.close()


async def _read(receive: Any) -> dict[str, Any]:
    content = b""
    while True:
        message = await receive()
        content += message.get("body", b"")
        if not message.get("more_body"):
            return json.loads(content) if content else {}


async def _json(send: Any, status: int, content: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def _complete(send: Any, body: dict[str, Any], *, is_chat: bool) -> None:
    model = body["model"]
    if model == "busy":
        await _json(send, 429, {"error": {"message": "the queue is full", "code": "busy"}})
        return
    headers = [(b"content-type", b"text/event-stream"), (b"x-request-id", b"01TEST")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    num_tokens = int(body.get("max_tokens") or 4)
    stream = b"".join(_events(body, num_tokens, is_chat=is_chat))
    if model == "cut":
        await write(stream[: len(stream) // 2])
        raise ConnectionError("cut by script")
    if model == "broken":
        await write(b'data: {"error": {"message": "the engine fell over", "code": null}}\n\n')
        await write(b"data: [DONE]\n\n")
    elif model == "silent":
        await write(b'data: {"choices": [], "usage": null}\n\ndata: [DONE]\n\n')
    elif model == "stuck":
        await write(b": keep-alive\n\n")
        await asyncio.Event().wait()
    else:
        await write(b": keep-alive\n\n")
        # Cut where no event ends.
        for start in range(0, len(stream), 37):
            await write(stream[start : start + 37])
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _events(body: dict[str, Any], num_tokens: int, *, is_chat: bool) -> Iterator[bytes]:
    prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
    num_prompt = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
    common = {"id": "chatcmpl-1" if is_chat else "cmpl-1", "created": 1, "model": body["model"]}

    def event(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        content = {**common, "choices": choices, "usage": usage}
        return b"data: " + json.dumps(content).encode() + b"\n\n"

    for index in range(num_tokens):
        word = f"w{index} "
        carried = {"delta": {"content": word}} if is_chat else {"text": word}
        is_last = index == num_tokens - 1
        yield event([{"index": 0, "finish_reason": "length" if is_last else None, **carried}])
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    yield event([], usage)
    yield b"data: [DONE]\n\n"
