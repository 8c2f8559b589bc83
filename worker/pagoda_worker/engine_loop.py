"""The step loop: one thread owns the engine; others send it commands and get step results.

Knows threads and the event loop. Knows nothing of messages, sequences' meaning or the network.
"""

import asyncio
import collections
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from pagoda_engine import StepResult
from pagoda_worker.errors import EngineFailedError, EngineLoopError

logger = logging.getLogger(__name__)

MAX_COMMANDS = 65_536
"""Far above what admitted sequences can cause (each adds, imports, aborts and releases once)."""
MAX_UNDELIVERED_STEPS = 16
"""Steps ahead of the event loop; then the step thread waits for it."""


class SteppedEngine(Protocol):
    """What the loop itself needs of an engine; commands may use more of it."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def step(self) -> StepResult:
        """Compute one step."""
        ...

    def rest_seconds(self) -> float:
        """Return for how long a step should be put off; commands may make that less."""
        ...


E = TypeVar("E", bound=SteppedEngine)
T = TypeVar("T")


class EngineLoop(Generic[E]):
    """Runs an engine in a thread of its own; commands take effect between two steps, in order.

    Args:
        engine: used by the step thread only, from `start` until `stop` returned.
        on_step: called on the event loop with each step's result, in order.
        on_failure: called on the event loop, once, if a step or a posted command raised. Steps end
            then.
        after_step: called in the step thread with each result, before anything else can change.
        observe: called in the step thread after each step and before it sleeps.
        niceness: of the step thread.
    """

    def __init__(
        self,
        engine: E,
        *,
        on_step: Callable[[StepResult], None],
        on_failure: Callable[[EngineFailedError], None],
        after_step: Callable[[StepResult], None] = lambda _: None,
        observe: Callable[[E], None] = lambda _: None,
        max_commands: int = MAX_COMMANDS,
        niceness: int = 0,
    ) -> None:
        self._engine = engine
        self._on_step = on_step
        self._on_failure = on_failure
        self._after_step = after_step
        self._observe = observe
        self._max_commands = max_commands
        self._niceness = niceness
        self._commands: collections.deque[Callable[[E], object]] = collections.deque()
        self._wakeup = threading.Condition()
        # Each is written by one thread alone: a semaphore would be locked twice in each step.
        self._num_stepped = self._num_delivered = 0
        self._is_held = False  # the step thread waits for the event loop
        self._calls: set[asyncio.Future[Any]] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="engine-step", daemon=True)
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start stepping; results go to the running event loop."""
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Let the current step end and stop; commands still queued are dropped, calls cancelled."""
        with self._wakeup:
            self._is_closed = True
            self._wakeup.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._cancel_calls()

    def post(self, command: Callable[[E], object]) -> None:
        """Run `command` before the next step. If it raises, the engine has failed.

        Raises:
            EngineLoopError: stopped, failed, or the queue is full.
        """
        with self._wakeup:
            if self._is_closed:
                raise EngineLoopError("the step loop has stopped")
            if len(self._commands) >= self._max_commands:
                raise EngineLoopError(
                    f"{len(self._commands)} commands wait for the step loop, the limit is "
                    f"{self._max_commands}: a step must have hung"
                )
            self._commands.append(command)
            self._wakeup.notify()

    def call(self, function: Callable[[E], T]) -> "asyncio.Future[T]":
        """Run `function` before the next step; the future has its result or exception."""
        event_loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = event_loop.create_future()

        def command(engine: E) -> None:
            try:
                result = function(engine)
            except Exception as error:
                self._to_event_loop(_set_exception, future, error)
            else:
                self._to_event_loop(_set_result, future, result)

        self.post(command)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def _cancel_calls(self) -> None:
        for future in tuple(self._calls):
            future.cancel()

    def _fail(self, failure: EngineFailedError) -> None:
        self._cancel_calls()
        self._on_failure(failure)

    def _run(self) -> None:
        os.nice(self._niceness)  # of this thread alone, and of those that it starts
        try:
            while self._run_commands():
                if self._engine.has_work():
                    self._step()
        except Exception as error:
            logger.exception("the engine failed")
            with self._wakeup:
                self._is_closed = True
                self._commands.clear()
            failure = EngineFailedError(error)
            failure.__cause__ = error
            self._to_event_loop(self._fail, failure)

    def _run_commands(self) -> bool:
        """Run what is queued; sleep while there is nothing to do, or a step is put off.

        False: stop.
        """
        is_observed = False
        while True:
            with self._wakeup:
                if self._is_closed:
                    return False
                command = self._commands.popleft() if self._commands else None
                if command is None:
                    if self._engine.has_work():
                        if (rest := self._engine.rest_seconds()) <= 0:
                            return True
                        self._wakeup.wait(rest)
                        continue
                    if is_observed:
                        self._wakeup.wait()
                        continue
            if command is not None:
                command(self._engine)
                is_observed = False
            else:
                self._observe(self._engine)
                is_observed = True

    def _step(self) -> None:
        if self._is_far_ahead():
            self._wait_for_event_loop()
        if self._is_closed:
            return
        self._num_stepped += 1
        result = self._engine.step()
        self._after_step(result)
        self._observe(self._engine)
        self._to_event_loop(self._deliver, result)

    def _deliver(self, result: StepResult) -> None:
        self._num_delivered += 1
        if self._is_held:
            with self._wakeup:
                self._wakeup.notify()
        self._on_step(result)

    def _is_far_ahead(self) -> bool:
        """Tell whether as many results as may be have not been seen by the event loop yet."""
        return self._num_stepped - self._num_delivered >= MAX_UNDELIVERED_STEPS

    def _wait_for_event_loop(self) -> None:
        with self._wakeup:
            self._is_held = True
            self._wakeup.wait_for(lambda: self._is_closed or not self._is_far_ahead())
            self._is_held = False

    def _to_event_loop(self, function: Callable[..., object], *args: object) -> None:
        assert self._event_loop is not None
        try:
            self._event_loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed: nobody is left to tell
            self._is_closed = True


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
