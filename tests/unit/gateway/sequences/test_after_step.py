"""Streams write at once while steps come one by one, and gather what comes together."""

import asyncio
import logging

import pytest

from pagoda_gateway.sequences.after_step import AfterStep


class Streams:
    """Notes who was called."""

    def __init__(self) -> None:
        self.after_step = AfterStep()
        self.called: list[str] = []

    def call(self, name: str, *, can_be_now: bool = True) -> None:
        self.after_step.call(lambda: self.called.append(name), can_be_now=can_be_now)

    def step(self, *names: str) -> None:
        self.after_step.begin()
        for name in names:
            self.call(name)
        self.after_step.end()


async def test_a_step_that_comes_alone_is_written_at_once() -> None:
    streams = Streams()
    streams.step("a", "b")
    assert streams.called == ["a", "b"]

    await asyncio.sleep(0)
    streams.step("a")
    assert streams.called == ["a", "b", "a"]


async def test_steps_that_come_together_are_gathered_behind_the_first() -> None:
    streams = Streams()
    streams.step("a")
    streams.step("b")
    streams.step("c")
    assert streams.called == ["a"]

    await asyncio.sleep(0)
    assert streams.called == ["a", "b", "c"]


async def test_what_concerns_more_of_the_step_waits_for_all_of_it() -> None:
    streams = Streams()
    streams.after_step.begin()
    streams.call("several choices", can_be_now=False)
    streams.call("one")
    streams.after_step.end()
    assert streams.called == ["one"]

    await asyncio.sleep(0)
    assert streams.called == ["one", "several choices"]


async def test_what_comes_with_no_step_is_called_in_the_next_turn() -> None:
    streams = Streams()
    streams.step()
    streams.call("judged")
    assert streams.called == []

    await asyncio.sleep(0)
    assert streams.called == ["judged"]


async def test_one_that_fails_keeps_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    streams = Streams()

    def fail() -> None:
        raise ValueError("a defect")

    with caplog.at_level(logging.ERROR):
        streams.after_step.begin()
        streams.after_step.call(fail, can_be_now=True)
        streams.call("other")
        streams.after_step.call(fail)
        streams.call("late", can_be_now=False)
        streams.after_step.end()
        await asyncio.sleep(0)

    assert streams.called == ["other", "late"]
    assert caplog.text.count("ValueError: a defect") == 2
