"""Large bodies are read one at a time, and no tenant waits for all of another's."""

import asyncio
import threading

import pytest

from pagoda_gateway.large_bodies import INLINE_BYTES, LargeBodies

LARGE = INLINE_BYTES + 1


async def test_a_tenant_waits_for_one_of_anothers_bodies_at_most() -> None:
    bodies, read = LargeBodies(), list[str]()
    is_open = threading.Event()

    def first() -> None:
        is_open.wait(60)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bodies.read("a", LARGE, first))
        for number in range(3):
            tasks.create_task(bodies.read("a", LARGE, lambda n=number: read.append(f"a{n}")))
        tasks.create_task(bodies.read("b", LARGE, lambda: read.append("b")))
        await asyncio.sleep(0)
        is_open.set()
    assert read == ["b", "a0", "a1", "a2"]


async def test_only_what_is_large_leaves_the_event_loop() -> None:
    bodies, here = LargeBodies(), threading.current_thread()
    assert await bodies.read("a", LARGE - 1, threading.current_thread) is here
    assert await bodies.read("a", LARGE, threading.current_thread) is not here


async def test_who_is_gone_has_nothing_read_and_keeps_nobody_out() -> None:
    bodies, read = LargeBodies(), list[str]()
    is_open = threading.Event()
    reading = asyncio.create_task(bodies.read("a", LARGE, lambda: is_open.wait(60)))
    waiting = asyncio.create_task(bodies.read("b", LARGE, lambda: read.append("b")))
    await asyncio.sleep(0)
    for task in (waiting, reading):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    is_open.set()
    await bodies.read("c", LARGE, lambda: read.append("c"))
    assert read == ["c"]


async def test_what_fails_gives_its_turn_back() -> None:
    bodies = LargeBodies()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await bodies.read("a", LARGE, lambda: 1 // 0)
