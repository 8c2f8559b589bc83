"""An OpenAI server that computes nothing: what a gateway before it adds, is the gateway's.

    python benchmarks/serving/peers/null_openai.py --port 8000 --step-ms 10

Streams chats, the first token at once and one more of each stream at every step, as the null worker
does on the bus. Reads of a request only its length and `max_tokens`.
"""

import argparse
import asyncio

import orjson
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"data: [DONE]\n\n"


def piece(data: bytes) -> bytes:
    """Return one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    """Return one event as vLLM writes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = {
        "id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk",
        "created": 1_700_000_000, "model": "bench", "choices": [choice],
    }  # fmt: skip
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


FIRST = HEAD + piece(event({"role": "assistant", "content": ""}))
TOKEN = piece(event({"content": " token"}))
LAST = piece(event({"content": " token"}, "length")) + piece(END) + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection; its streams come one after the other."""

    def __init__(self, streams: "dict[Connection, int]") -> None:
        """Add to `streams` how many tokens it lacks yet."""
        self._streams = streams
        self._buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Keep it."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget its stream."""
        self._streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Begin a stream once a request is whole."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        _, _, length = head.lower().partition(b"content-length:")
        if len(body) < int(length.partition(b"\r\n")[0] or b"0"):
            return
        self._buffer = b""
        num_tokens = orjson.loads(body)["max_tokens"]
        if num_tokens == 1:
            self.transport.write(FIRST + LAST)
            return
        self.transport.write(FIRST + TOKEN)
        self._streams[self] = num_tokens - 1

    def step(self) -> None:
        """Send one token."""
        self._streams[self] -= 1
        if self._streams[self]:
            self.transport.write(TOKEN)
        else:
            del self._streams[self]
            self.transport.write(LAST)


async def serve(port: int, step_seconds: float) -> None:
    """Serve until killed."""
    streams: dict[Connection, int] = {}
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(streams), "127.0.0.1", port, backlog=4096)
    next_step = loop.time()
    while True:
        next_step = max(next_step + step_seconds, loop.time())
        await asyncio.sleep(next_step - loop.time())
        for connection in list(streams):
            connection.step()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=10.0)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.step_ms / 1e3))


if __name__ == "__main__":
    main()
