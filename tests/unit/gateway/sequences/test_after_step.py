"""What is due after a step is called once all of it was taken in, together, whatever one does."""

import asyncio
import logging

import pytest

from pagoda_gateway.sequences.after_step import AfterStep


async def test_calls_all_in_the_next_turn_and_in_order() -> None:
    after_step, called = AfterStep(), list[str]()
    after_step.call(lambda: called.append("a"))
    after_step.call(lambda: called.append("b"))

    assert called == []
    await asyncio.sleep(0)
    assert called == ["a", "b"]

    after_step.call(lambda: called.append("c"))
    await asyncio.sleep(0)
    assert called == ["a", "b", "c"]


async def test_what_comes_due_meanwhile_is_called_a_turn_later() -> None:
    after_step, called = AfterStep(), list[str]()

    def again() -> None:
        called.append("first")
        after_step.call(lambda: called.append("second"))

    after_step.call(again)
    await asyncio.sleep(0)
    assert called == ["first"]
    await asyncio.sleep(0)
    assert called == ["first", "second"]


async def test_one_that_fails_keeps_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    after_step, called = AfterStep(), list[str]()

    def fail() -> None:
        raise ValueError("a defect")

    after_step.call(fail)
    after_step.call(lambda: called.append("other"))
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0)

    assert called == ["other"]
    assert "a defect" in caplog.text
