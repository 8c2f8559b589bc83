import asyncio
import os
import threading

import pytest

from pagoda_engine import SequenceOutput, StepResult
from pagoda_worker.engine_loop import EngineLoop
from pagoda_worker.errors import EngineFailedError, EngineLoopError

SECONDS = 60.0


class CountingEngine:
    """Emits one token per step for each sequence that was added and not aborted."""

    def __init__(self) -> None:
        self.sequences: dict[str, int] = {}
        self.num_has_work_calls = 0
        self.failure: Exception | None = None
        self.rest = 0.0  # seconds
        self.thread_ids: set[int] = set()

    def add(self, sequence_id: str) -> None:
        self.thread_ids.add(threading.get_ident())
        self.sequences[sequence_id] = 0

    def abort(self, sequence_id: str) -> None:
        self.sequences.pop(sequence_id, None)

    def has_work(self) -> bool:
        self.num_has_work_calls += 1
        return bool(self.sequences)

    def rest_seconds(self) -> float:
        rest = self.rest
        if rest < 1.0:
            self.rest = 0.0  # it is over when we are asked again
        return rest

    def step(self) -> StepResult:
        self.thread_ids.add(threading.get_ident())
        if self.failure is not None:
            raise self.failure
        outputs = []
        for sequence_id, index in self.sequences.items():
            outputs.append(SequenceOutput(sequence_id, index, (index,)))
            self.sequences[sequence_id] = index + 1
        return StepResult(outputs=tuple(outputs))


class Harness:
    def __init__(self, **options: int) -> None:
        self.engine = CountingEngine()
        self.results: list[StepResult] = []
        self.failures: list[EngineFailedError] = []
        self.changed = asyncio.Condition()
        self.observed = 0
        self.loop = EngineLoop(
            self.engine,
            on_step=self._on_step,
            on_failure=self._on_failure,
            observe=self._observe,
            **options,
        )

    def _observe(self, engine: CountingEngine) -> None:
        self.observed += 1

    def _on_step(self, result: StepResult) -> None:
        self.results.append(result)
        self._notify()

    def _on_failure(self, failure: EngineFailedError) -> None:
        self.failures.append(failure)
        self._notify()

    def _notify(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        self.task = asyncio.ensure_future(notify())

    async def wait_for(self, predicate) -> None:
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(predicate)


async def test_results_come_in_order_on_the_event_loop() -> None:
    harness = Harness()
    harness.loop.start()

    harness.loop.post(lambda engine: engine.add("a"))
    await harness.wait_for(lambda: len(harness.results) >= 50)
    await harness.loop.stop()

    indices = [result.outputs[0].first_index for result in harness.results]
    assert indices == list(range(len(indices)))
    assert len(harness.engine.thread_ids) == 1
    assert threading.get_ident() not in harness.engine.thread_ids


async def test_abort_takes_effect_before_the_next_step() -> None:
    harness = Harness()
    harness.loop.start()
    harness.loop.post(lambda engine: engine.add("a"))
    await harness.wait_for(lambda: len(harness.results) >= 3)

    def abort(engine: CountingEngine) -> int:
        num_emitted = engine.sequences["a"]
        engine.abort("a")
        return num_emitted

    num_emitted = await harness.loop.call(abort)
    await harness.loop.call(lambda engine: None)
    await harness.loop.stop()

    assert sum(len(result.outputs) for result in harness.results) == num_emitted


async def test_a_step_is_put_off_until_something_changes() -> None:
    harness = Harness()
    harness.loop.start()
    harness.engine.rest = 1000.0
    harness.loop.post(lambda engine: engine.add("a"))
    await harness.loop.call(lambda engine: None)
    assert not harness.results

    def end_rest(engine: CountingEngine) -> None:
        engine.rest = 0.0

    harness.loop.post(end_rest)
    await harness.wait_for(lambda: len(harness.results) >= 3)
    harness.engine.rest = 0.001
    num_results = len(harness.results)
    await harness.wait_for(lambda: len(harness.results) >= num_results + 3)
    harness.engine.rest = 1000.0
    await harness.loop.stop()


async def test_idle_loop_sleeps() -> None:
    harness = Harness()
    harness.loop.start()
    await harness.loop.call(lambda engine: None)
    await asyncio.to_thread(lambda: None)
    await harness.loop.call(lambda engine: None)
    before = harness.engine.num_has_work_calls
    await asyncio.to_thread(threading.Event().wait, 0.05)
    assert harness.engine.num_has_work_calls - before <= 3
    await harness.loop.stop()


async def test_call_returns_results_and_exceptions() -> None:
    harness = Harness()
    harness.loop.start()

    assert await harness.loop.call(lambda engine: 7) == 7
    with pytest.raises(KeyError):
        await harness.loop.call(lambda engine: engine.sequences["unknown"])

    assert not harness.failures
    await harness.loop.stop()


async def test_failed_step_is_reported_once_and_ends_the_loop() -> None:
    harness = Harness()
    harness.engine.failure = RuntimeError("the device is gone")
    harness.loop.start()

    harness.loop.post(lambda engine: engine.add("a"))
    await harness.wait_for(lambda: harness.failures)

    assert "the device is gone" in str(harness.failures[0])
    assert isinstance(harness.failures[0].__cause__, RuntimeError)
    with pytest.raises(EngineLoopError, match="stopped"):
        harness.loop.post(lambda engine: None)
    await harness.loop.stop()
    assert len(harness.failures) == 1


async def test_failed_posted_command_is_a_failure() -> None:
    harness = Harness()
    harness.loop.start()

    harness.loop.post(lambda engine: engine.sequences["unknown"])

    await harness.wait_for(lambda: harness.failures)
    await harness.loop.stop()


async def test_commands_are_bounded() -> None:
    harness = Harness(max_commands=2)

    harness.loop.post(lambda engine: None)
    harness.loop.post(lambda engine: None)
    with pytest.raises(EngineLoopError, match="the limit is 2"):
        harness.loop.post(lambda engine: None)


async def test_stop_cancels_calls_that_never_ran() -> None:
    harness = Harness()
    waiting = harness.loop.call(lambda engine: None)

    await harness.loop.stop()

    assert waiting.cancelled()


async def test_step_thread_waits_for_a_slow_event_loop() -> None:
    harness = Harness()
    harness.loop.start()
    harness.loop.post(lambda engine: engine.add("a"))
    await harness.wait_for(lambda: harness.results)
    seen = len(harness.results)

    threading.Event().wait(0.05)  # the event loop is blocked, the step thread is not

    assert harness.engine.sequences["a"] <= seen + 32
    await harness.loop.stop()


async def test_only_the_step_thread_lets_others_come_first() -> None:
    def niceness(_: object = None) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)  # of the thread that asks

    loop = EngineLoop(
        CountingEngine(),
        on_step=lambda _: None,
        on_failure=lambda _: None,
        niceness=1,
    )
    before = niceness()
    loop.start()
    async with asyncio.timeout(SECONDS):
        found = await loop.call(niceness)
    await loop.stop()

    assert found == before + 1
    assert niceness() == before
