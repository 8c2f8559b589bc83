"""What is said of a handler that fails, however often it does."""

import logging

import pytest

from pagoda_runtime.messaging import stream_consumer
from pagoda_runtime.messaging.stream_consumer import LOG_SECONDS, FailureLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> FailureLog:
    caplog.set_level(logging.INFO, stream_consumer.__name__)
    return FailureLog("STREAM/durable", clock)


async def seven() -> str:
    return "7"


async def fail(log: FailureLog, clock: Clock, *, seconds: float, step: float = 10.0) -> None:
    """Fail every `step` seconds, the last time after `seconds`."""
    for _ in range(int(seconds / step)):
        clock.now += step
        await log.failed(ValueError("no"), seven)


async def test_failures_are_said_once_a_minute_and_one_traceback_is_shown(
    log: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await fail(log, clock, seconds=10 + 5 * LOG_SECONDS)
    first, *others = caplog.records
    assert first.exc_info
    assert [record.exc_info for record in others] == [None] * 5
    assert others[0].message == (
        "STREAM/durable: the handler has failed for 60 s (ValueError); 7 messages wait"
    )


async def test_what_waits_is_asked_for_when_it_is_said_alone(log: FailureLog, clock: Clock) -> None:
    asked: list[float] = []

    async def num_waiting() -> str:
        asked.append(clock.now)
        return "7"

    for _ in range(13):
        await log.failed(ValueError("no"), num_waiting)
        clock.now += LOG_SECONDS / 12
    assert asked == [1000.0, 1000.0 + LOG_SECONDS]


async def test_that_it_works_again_is_said_once(
    log: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await fail(log, clock, seconds=30)
    log.succeeded()
    log.succeeded()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.records[1].message == "STREAM/durable: the handler works again, after 20 s"


async def test_failing_by_turns_is_said_once_a_minute(
    log: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(59):
        await fail(log, clock, seconds=1, step=1)
        log.succeeded()
    assert len(caplog.records) == 2
    await fail(log, clock, seconds=2, step=1)
    assert len(caplog.records) == 3


async def test_success_ends_a_row_of_failures(log: FailureLog, clock: Clock) -> None:
    await fail(log, clock, seconds=30)
    assert log.num_failures == 3
    log.succeeded()
    assert log.num_failures == 0
