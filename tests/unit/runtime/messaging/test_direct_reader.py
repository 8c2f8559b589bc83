"""`direct_reader` in front of nats-py's own parser, with bytes that arrive in any pieces."""

import asyncio
from itertools import pairwise

import pytest
from nats.protocol.parser import Parser

from pagoda_runtime.messaging.direct_reader import read_directly

LISTENER, OTHER = 3, 12
STREAM = (
    b"MSG a.b 3 5\r\nfirst\r\n"
    b"MSG a.b 3 _INBOX.x.7 4\r\n\r\n\r\n\r\n"
    b"PING\r\n"
    b"MSG a.c 12 5\r\nother\r\n"
    b"HMSG a.b 3 18 20\r\nNATS/1.0\r\nA: 1\r\n\r\nhi\r\n"
    b"MSG a.b 3 0\r\n\r\n"
    b"MSG a.b 3 4\r\nlast\r\n"
)


class Connection:
    """A client as a parser knows it, whose task has its turn when a test says so."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes, bytes, bytes]] = []
        self.num_direct = self.num_pings = 0
        self.parser = Parser(self)
        self.reader = asyncio.StreamReader()
        read_directly(self.reader, self.parser, {LISTENER}, self._on_payload)

    def _on_payload(self, sid: int, subject: bytes, reply: bytes, payload: bytes) -> None:
        self.num_direct += 1
        self.heard.append((sid, subject, reply, payload))

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, payload: bytes, _headers: bytes | None
    ) -> None:
        self.heard.append((sid, subject, reply, payload))

    async def _process_ping(self) -> None:
        self.num_pings += 1

    async def run_task(self) -> None:
        """Read what has come, if anything was left to the task."""
        if self.reader._buffer:  # type: ignore[attr-defined]
            await self.parser.parse(await self.reader.read(1 << 16))


EXPECTED = [
    (LISTENER, b"a.b", b"", b"first"),
    (LISTENER, b"a.b", b"_INBOX.x.7", b"\r\n\r\n"),
    (OTHER, b"a.c", b"", b"other"),
    (LISTENER, b"a.b", b"", b"hi"),
    (LISTENER, b"a.b", b"", b""),
    (LISTENER, b"a.b", b"", b"last"),
]


@pytest.mark.parametrize("size", [1, 2, 7, 20, 21, 46, 60, len(STREAM)])
@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_nothing_is_lost_or_overtaken(size: int, turns: int) -> None:
    connection = Connection()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    for number, piece in enumerate(pieces):
        connection.reader.feed_data(piece)
        if number % turns == 0:
            await connection.run_task()
    await connection.run_task()

    assert connection.heard == EXPECTED
    assert connection.num_pings == 1


async def test_two_pieces_at_any_place_are_one_stream() -> None:
    for start, _ in pairwise(range(len(STREAM) + 1)):
        connection = Connection()
        for piece in (STREAM[:start], STREAM[start:]):
            connection.reader.feed_data(piece)
            await connection.run_task()

        assert connection.heard == EXPECTED, start


async def test_whole_messages_for_a_listener_wait_for_no_task() -> None:
    connection = Connection()
    connection.reader.feed_data(STREAM[: STREAM.index(b"PING")])

    assert connection.num_direct == 2
    assert connection.heard == EXPECTED[:2]
    assert not connection.reader._buffer  # type: ignore[attr-defined]


async def test_what_comes_behind_something_unread_waits_for_the_task() -> None:
    connection = Connection()
    connection.reader.feed_data(b"PING\r\n")
    connection.reader.feed_data(b"MSG a.b 3 5\r\nfirst\r\n")
    assert connection.heard == []

    await connection.run_task()
    assert connection.heard == EXPECTED[:1]
