"""Tenants take turns at places, whoever came first and with however many."""

import asyncio
import random
from collections import Counter

import pytest
from support.seeds import seed_of_tests

from pagoda_gateway.turns import Turns


class Work:
    """Requests that wait for a place and write down, in order, whose turn came."""

    def __init__(self, num_places: int) -> None:
        self.turns = Turns(num_places)
        self.begun: list[str] = []

    async def ask(self, tenants: str) -> list[asyncio.Task[None]]:
        """Ask for one place for each letter; returns when all wait or have one."""
        tasks = [asyncio.create_task(self._wait(tenant)) for tenant in tenants]
        await asyncio.sleep(0)
        return tasks

    async def end(self, tenant: str) -> None:
        """Let a tenant give a place back, and whoever is next begin."""
        self.turns.release(tenant)
        await asyncio.sleep(0)

    async def _wait(self, tenant: str) -> None:
        await self.turns.acquire(tenant)
        self.begun.append(tenant)


async def test_a_tenant_alone_has_all_places() -> None:
    work = Work(2)
    await work.ask("aaa")
    assert work.begun == ["a", "a"]


async def test_who_comes_last_is_next_when_another_holds_all() -> None:
    work = Work(2)
    await work.ask("aaaaaaa")
    await work.ask("b")
    await work.end("a")
    assert work.begun == ["a", "a", "b"]


async def test_nobody_holds_two_places_while_another_waits_with_none() -> None:
    work = Work(2)
    await work.ask("aabb")
    await work.end("a")  # b begins, beside the other a
    await work.ask("ab")
    await work.end("b")
    assert work.begun == ["a", "a", "b", "b"]


async def test_three_take_turns_at_one_place() -> None:
    work = Work(1)
    tasks = await work.ask("aaaabbbbcc")
    for tenant in "abcabcaba":
        assert work.begun[-1] == tenant
        await work.end(tenant)
    await asyncio.gather(*tasks)
    assert "".join(work.begun) == "abcabcabab"


async def test_a_wait_that_is_cancelled_holds_no_place() -> None:
    work = Work(1)
    _, waiting, given, _ = await work.ask("abcd")
    waiting.cancel()
    work.turns.release("a")
    given.cancel()  # its turn has come, and it has not heard of it
    with pytest.raises(asyncio.CancelledError):
        await given
    await asyncio.sleep(0)
    assert work.begun == ["a", "d"]


async def test_whatever_comes_and_goes_all_places_are_free_at_the_end() -> None:
    rng = random.Random(seed_of_tests())
    work, tasks, num_ended = Work(2), list[asyncio.Task[None]](), 0
    for _ in range(2000):
        tasks += await work.ask(rng.choice(["a", "ab", "abc", ""]))
        if rng.random() < 0.3 and tasks:
            rng.choice(tasks).cancel()
        if num_ended < len(work.begun):
            await work.end(work.begun[num_ended])
            num_ended += 1
        assert len(work.begun) - num_ended <= 2
    while num_ended < len(work.begun):
        await work.end(work.begun[num_ended])
        num_ended += 1
    assert all(task.done() for task in tasks)
    assert (work.turns._num_free, work.turns._held) == (2, Counter())
