"""What an ill-meaning client does to a gateway: each abuse is a function that runs for seconds.

Blocking sockets in threads, so that the one who measures is never held up by what it sends. Knows
HTTP as bytes only, because a client library would refuse to send half of this.
"""

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SEND_SECONDS = 20.0
MEGABYTES_8 = 8 * 1024 * 1024 - 4096


@dataclass(frozen=True, slots=True)
class Target:
    """The gateway, and the abuser's own valid key."""

    host: str
    port: int
    key: str
    model: str

    def head(self, path: str, size: int) -> bytes:
        """Return a POST's head for a body of `size` bytes."""
        return (
            f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {size}\r\n\r\n"
        ).encode()

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection((self.host, self.port), timeout=SEND_SECONDS)

    def post(self, path: str, body: bytes, *, reads: bool = False) -> str:
        """Send one request; return its status or what went wrong. `reads`: all of the answer."""
        try:
            with self.connect() as connection:
                connection.sendall(self.head(path, len(body)) + body)
                answer = connection.recv(64)
                last = answer
                while reads and last and not last.endswith((b"}}", b"0\r\n\r\n")):
                    last = connection.recv(1 << 20)
                return answer[9:12].decode() if answer else "closed"
        except OSError as error:
            return type(error).__name__


Abuse = Callable[[Target, float], "Counter[str]"]


def _bodies(
    path: str, make: Callable[[Target], bytes], *, clients: int = 2, reads: bool = False
) -> Abuse:
    """Return an abuse: a few clients post one body again and again, and may read the answers."""

    def run(target: Target, seconds: float) -> "Counter[str]":
        body, outcomes = make(target), Counter[str]()
        until = time.monotonic() + seconds

        def client() -> None:
            while time.monotonic() < until:
                outcomes[target.post(path, body, reads=reads)] += 1

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

    return run


def _crowd(first: Callable[[Target], bytes], *, size: int, drip: bytes) -> Abuse:
    """Return an abuse: `size` connections that begin a request and go on a byte at a time."""

    def run(target: Target, seconds: float) -> "Counter[str]":
        outcomes = Counter[str]()
        head = first(target)
        with contextlib.ExitStack() as stack:
            crowd = []
            for _ in range(size):
                try:
                    connection = stack.enter_context(target.connect())
                    connection.sendall(head)
                    crowd.append(connection)
                except OSError:
                    outcomes["refused"] += 1
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                crowd = [c for c in crowd if _send(c, drip)]
                time.sleep(0.5)
            outcomes["still open"] = len(crowd)
            outcomes["closed"] = size - len(crowd) - outcomes["refused"]
        return outcomes

    return run


def _send(connection: socket.socket, drip: bytes) -> bool:
    with contextlib.suppress(OSError):
        connection.sendall(drip)
        return True
    return False


def _chat(fields: str) -> Callable[[Target], bytes]:
    def make(target: Target) -> bytes:
        messages = '[{"role":"user","content":"hi"}]'
        return (
            f'{{"model":"{target.model}","max_tokens":1,"messages":{messages},{fields}}}'
        ).encode()

    return make


def _completion(prompt: str) -> Callable[[Target], bytes]:
    return lambda target: f'{{"model":"{target.model}","max_tokens":1,"prompt":{prompt}}}'.encode()


def _tools() -> str:
    tool = json.dumps({"type": "function", "function": {"name": "f", "description": "d" * 40}})
    return '"tools":[' + ",".join([tool] * (MEGABYTES_8 // (len(tool) + 1))) + "]"


def _nothing(_target: Target, seconds: float) -> "Counter[str]":
    threading.Event().wait(seconds)
    return Counter()


def _repeat(item: str) -> str:
    return "[" + ",".join([item] * (MEGABYTES_8 // (len(item) + 1))) + "]"


def _half_head(target: Target) -> bytes:
    return target.head("/v1/chat/completions", 10)[:-2]


def _wrong_keys(target: Target, seconds: float) -> "Counter[str]":
    """Post with keys that nobody has, a new one each time."""
    outcomes, until = Counter[str](), time.monotonic() + seconds

    def client(name: str) -> None:
        for number in _until(until):
            stranger = Target(target.host, target.port, f"sk-{name}-{number}", target.model)
            outcomes[stranger.post("/v1/chat/completions", b"{}")] += 1

    threads = [threading.Thread(target=client, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _until(moment: float) -> Iterator[int]:
    number = 0
    while time.monotonic() < moment:
        yield number
        number += 1


def _endless_header(target: Target, seconds: float) -> "Counter[str]":
    """Send one header of up to 64 MB."""
    outcomes = Counter[str]()
    piece = b"a" * 65536
    with contextlib.suppress(OSError), target.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: ")
        until, sent = time.monotonic() + seconds, 0
        while time.monotonic() < until and sent < 64 << 20:
            try:
                connection.sendall(piece)
            except OSError:
                break
            sent += len(piece)
        outcomes[f"{sent >> 10} kB taken"] += 1
    return outcomes


ABUSES: dict[str, Abuse] = {
    "nothing": _nothing,
    "8 MB of one letter": _bodies(
        "/v1/completions", _completion('"' + "a" * (MEGABYTES_8 - 200) + '"')
    ),
    "1 MB of one letter": _bodies("/v1/completions", _completion('"' + "a" * 1_000_000 + '"')),
    "8 MB of prompts": _bodies("/v1/completions", _completion(_repeat('"a"'))),
    "8 MB list of [0]": _bodies("/v1/completions", _completion(_repeat("[0]"))),
    "8 MB of token ids": _bodies("/v1/completions", _completion(_repeat("1"))),
    "8 MB of invalid tools": _bodies(
        "/v1/chat/completions", _chat('"tools":' + _repeat("1")), clients=1
    ),
    "8 MB of invalid bad_words": _bodies(
        "/v1/chat/completions", _chat('"bad_words":' + _repeat("1")), clients=1
    ),
    "8 MB of tools": _bodies("/v1/chat/completions", _chat(_tools())),
    "nesting of 100,000": _bodies(
        "/v1/chat/completions", _chat('"tools":[{"a":' + "[" * 100_000 + "]" * 100_000 + "}]")
    ),
    "nesting of 900": _bodies(
        "/v1/chat/completions", _chat('"tools":[{"a":' + "[" * 900 + "]" * 900 + "}]")
    ),
    "detokenize 1M ids": _bodies(
        "/detokenize", lambda t: f'{{"tokens":[{",".join(["1"] * 1_000_000)}]}}'.encode()
    ),
    "tokenize 1 MB to strings": _bodies(
        "/tokenize", lambda t: f'{{"return_token_strs":true,"prompt":"{"a " * 500_000}"}}'.encode()
    ),
    "2048 embeddings of 1024 numbers": _bodies(
        "/v1/embeddings",
        lambda t: json.dumps({"model": t.model, "input": ["a"] * 2048}).encode(),
        clients=1,
        reads=True,
    ),
    "crowd with half a head": _crowd(_half_head, size=3000, drip=b"x"),
    "crowd of trickling bodies": _crowd(
        lambda target: target.head("/v1/chat/completions", 100_000) + b"{", size=1100, drip=b" "
    ),
    "one endless header": _endless_header,
    "wrong keys": _wrong_keys,
}


def names_of(wanted: Iterable[str]) -> list[str]:
    """Return the abuses whose names have one of the words; all without words."""
    words = list(wanted)
    return [name for name in ABUSES if not words or any(word in name for word in words)]
