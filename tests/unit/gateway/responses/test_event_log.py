"""Events of a response in the background: each once, in order, however late and however often."""

import asyncio
import random

import pytest
from support.seeds import seed_of_tests

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.responses.event_log import EventLog, KeptEvents

KEEPALIVE = b": keepalive\n\n"


def event(number: int) -> bytes:
    return b'event: x\ndata: {"n":%d}\n\n' % number


async def read(log: EventLog, after: int, *, keepalive_seconds: float = 60.0) -> bytes:
    return b"".join([part async for part in log.read(after, keepalive_seconds=keepalive_seconds)])


async def test_readers_at_any_time_get_what_they_lack() -> None:
    rng, log = random.Random(seed_of_tests()), EventLog()
    readers = {-1: asyncio.create_task(read(log, -1))}
    for number in range(60):
        log.append(event(number))
        if rng.random() < 0.3:
            after = rng.randrange(-1, number + 1)
            readers[after] = asyncio.create_task(read(log, after))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    log.end(event(60))
    for after in (59, 60, 61):
        readers[after] = asyncio.create_task(read(log, after))
    for after, reader in readers.items():
        assert await reader == b"".join(map(event, range(after + 1, 61))), after
    kept = KeptEvents(log.packed)
    assert kept.num_events == 60
    for after in readers:
        assert kept.after(after) == b"".join(map(event, range(after + 1, 60))), after


async def test_silence_is_broken() -> None:
    log = EventLog()
    parts = log.read(-1, keepalive_seconds=0.0)
    assert await anext(parts) == KEEPALIVE
    log.append(event(0))
    assert await anext(parts) == event(0)


async def test_one_that_is_closed_without_an_end_ends_readers() -> None:
    log = EventLog()
    reader = asyncio.create_task(read(log, -1))
    log.append(event(0))
    log.close()
    log.close()
    assert await reader == event(0)
    assert not log.has_ended
    assert KeptEvents(None).after(5) == b""


async def test_what_is_too_much_is_forgotten_from_the_start_on() -> None:
    log = EventLog(max_bytes=3 * len(event(0)))
    slow = log.read(-1, keepalive_seconds=60.0)
    log.append(event(0))
    assert await anext(slow) == event(0)
    for number in range(1, 9):
        log.append(event(number))
    with pytest.raises(StopAsyncIteration):  # what it lacks is gone
        await anext(slow)
    log.close()
    kept = KeptEvents(log.packed)
    for check in (log.check, kept.after):
        with pytest.raises(InvalidRequestError, match="up to 5 are kept no longer"):
            check(4)
    log.check(5)
    assert await read(log, 5) == kept.after(5) == event(6) + event(7) + event(8)
    assert await read(log, 6) == kept.after(6) == event(7) + event(8)
