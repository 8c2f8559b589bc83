"""One batch at one replica, from its claim until it is finished, lost, or left to another.

Each line is asked until it has an answer, and the answer is stored at once. Whoever takes the batch
next runs the lines that have none.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import RowMapping
from sqlalchemy.exc import SQLAlchemyError

from pagoda_gateway import metrics
from pagoda_gateway.batches.answer import Answer
from pagoda_gateway.batches.batch_store import LEASE_SECONDS, BatchStore, LeaseLostError
from pagoda_gateway.batches.file_store import FileStore
from pagoda_gateway.batches.line_reader import read_lines
from pagoda_gateway.batches.line_request import MAX_TRIES, Ask, LineRequest
from pagoda_gateway.batches.places import Place, Places
from pagoda_gateway.batches.validation import Validation, validate
from pagoda_gateway.errors import StorageFullError, UnavailableError
from pagoda_gateway.sequences.backoff import pause_seconds

logger = logging.getLogger(__name__)

RENEW_SECONDS = LEASE_SECONDS / 5
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0  # of a line that was refused for now
WRITE_TRIES = 3
WRITE_PAUSE_SECONDS = 1.0
GROUP_LINES = 100
AGAIN_SECONDS = 120.0  # for all lines that ran and have no answer, if no worker takes them


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a replica runs batches by.

    Attributes:
        owner: the replica, as leases name it; another one after each start.
        max_lines: of one batch.
        max_line_bytes: of each line.
        check_model: raises InvalidRequestError for a model that is not here.
        until_accounted: tells, in a while at most, whether the ledger has all that ran before.
    """

    owner: str
    max_lines: int
    max_line_bytes: int
    check_model: Callable[[str], object]
    until_accounted: Callable[[], Awaitable[bool]]


class BatchRun:
    """The work on one batch whose lease is this replica's."""

    def __init__(
        self,
        batch: RowMapping,
        files: FileStore,
        batches: BatchStore,
        ask: Ask,
        places: Places,
        options: RunOptions,
    ) -> None:
        """Prepare.

        Args:
            batch: as it was claimed.
            files: where its input is.
            batches: where its state and its answers are.
            ask: runs lines.
            places: for lines, shared with other batches.
            options: see RunOptions.
        """
        self._batch = batch
        self._files = files
        self._batches = batches
        self._ask = ask
        self._places = places
        self._options = options
        self._status: str = batch["status"]
        self._is_left = False  # for another replica, or for this one's next start
        self._is_late = False  # the ledger, so that the batch cannot end
        self._is_answered = False  # every line
        self._full: str = ""  # why no further answer can be kept
        self._over = asyncio.Event()  # no further line begins
        self._open = asyncio.Semaphore(places.num_places)  # lines that have begun
        self._num_open = self._num_waiting = 0  # of those: what waits to be asked again
        self._patience: set[asyncio.Timeout] = set()  # of lines that want a place
        self._again: asyncio.Timeout | None = None  # of those that are run again
        self._accounted: Mapping[int, int] = {}  # lines that ran: which attempt
        self._knows_accounts = not self._has_run  # of a replica before this one

    async def run(self) -> None:
        """Work until the end; a lease that is lost is one.

        Raises:
            Exception: the database failed; the lease runs out by itself.
        """
        loop = asyncio.get_running_loop()
        left = self._batch["expires_unix_seconds"] - self._batches.clock()
        if self._is_expired or left <= 0:
            self._stop_lines()
        timer = loop.call_later(max(0.0, left), self._stop_lines)
        self._hear(self._status)
        try:
            async with asyncio.TaskGroup() as tasks:
                keeper = tasks.create_task(self._keep_lease())
                await self._work()
                keeper.cancel()
            if not self._is_late:  # else others come first, until the lease has run out
                await self._batches.release(self._id, self._options.owner)
        except* LeaseLostError:
            logger.warning("%s is no longer this replica's", self._id)
        finally:
            timer.cancel()

    @property
    def tenant(self) -> str:
        """Whose batch it is."""
        return str(self._batch["tenant"])

    @property
    def is_waiting(self) -> bool:
        """Whether all of its lines were refused for now: it holds nothing that others want."""
        return 0 < self._num_open == self._num_waiting

    def leave(self) -> None:
        """Begin no further line; `run` ends when those that run have ended."""
        self._is_left = True
        self._stop_lines()
        _end_now(self._again)

    @property
    def _id(self) -> str:
        return str(self._batch["batch_id"])

    @property
    def _is_expired(self) -> bool:
        """Whether a replica found the window over before, and has given up some lines."""
        return self._batch["finalizing_unix_seconds"] is not None

    @property
    def _has_run(self) -> bool:
        """Whether lines may have run at a replica before."""
        return self._batch["in_progress_unix_seconds"] is not None

    async def _work(self) -> None:
        if not await self._answer_accounted():
            return
        if self._status == "validating":
            await self._validate()
        if self._status == "in_progress":
            await self._answer_lines()
        is_ended = self._status not in ("in_progress", "cancelling")
        if not is_ended and (self._is_answered or not self._is_left):
            await self._finish()

    async def _validate(self) -> None:
        options, owner = self._options, self._options.owner
        file = await self._files.input_of(self._batch)
        if file is None:
            missing = "the input file was deleted before it was read"
            found = Validation.of_error("missing_file", missing)
        else:
            found = await validate(
                read_lines(self._files.content(file), options.max_line_bytes),
                endpoint=self._batch["endpoint"],
                max_lines=options.max_lines,
                max_line_bytes=options.max_line_bytes,
                check_model=options.check_model,
            )
        if found.errors:
            self._hear(await self._batches.fail(self._id, owner, found.errors))
            return
        self._hear(
            await self._batches.begin(
                self._batch, owner, num_lines=found.num_lines, model=found.model
            )
        )

    async def _answer_lines(self) -> None:
        """Run every line without an answer; return early when the batch is to end."""
        if self._batch["status"] == "in_progress" and not self._has_run:
            await self._batches.note(self._id, self._options.owner, "in_progress")
        async with (
            contextlib.aclosing(self._open_lines()) as unanswered,
            asyncio.TaskGroup() as running,
        ):
            async for request in unanswered:
                place = Place(self._places)
                if not await self._begin_line(place):
                    return
                task = running.create_task(self._run_line(request, place))
                # Not at the end of the work: a task that is cancelled early never begins it.
                task.add_done_callback(partial(self._end_line, place))
        self._is_answered = not self._over.is_set() or await self._has_all_answers()

    async def _open_lines(self) -> AsyncGenerator[LineRequest]:
        """Yield the requests of lines that have no answer."""
        answered = await self._batches.answered_lines(self._id)
        file = await self._files.input_of(self._batch)
        assert file is not None, "nobody can delete the input of a batch at work"
        # Each line was found short enough, by limits that may have been others.
        async for line in read_lines(self._files.content(file), file["num_bytes"]):
            if line.number not in answered:
                assert line.text is not None, "validated"
                yield LineRequest(self._batch, line.number, line.text)

    async def _open_groups(self) -> AsyncGenerator[list[LineRequest]]:
        """Yield the same, as many at a time as the database is asked for at once."""
        group: list[LineRequest] = []
        async with contextlib.aclosing(self._open_lines()) as unanswered:
            async for request in unanswered:
                group.append(request)
                if len(group) == GROUP_LINES:
                    yield group
                    group = []
        if group:
            yield group

    async def _has_all_answers(self) -> bool:
        async with contextlib.aclosing(self._open_lines()) as unanswered:
            async for _ in unanswered:
                return False
        return True

    async def _begin_line(self, place: Place) -> bool:
        """Wait for a place, and for the end of a line if enough have begun; False: as below."""
        if not await self._unless_over(self._open.acquire):
            return False
        if not await self._unless_over(place.take):
            self._open.release()
            return False
        self._num_open += 1
        return True

    def _end_line(self, place: Place, _line: asyncio.Task[None]) -> None:
        place.free()
        self._num_open -= 1
        self._open.release()

    async def _unless_over(self, take: Callable[[], Awaitable[object]]) -> bool:
        """Wait for something to be taken; False: it is not, the batch is to end."""
        if self._over.is_set():
            return False
        try:
            async with asyncio.timeout(None) as patience:
                self._patience.add(patience)
                await take()
        except TimeoutError:
            return False
        finally:
            self._patience.discard(patience)
        return True

    async def _run_line(self, request: LineRequest, place: Place) -> None:
        """Run one line in the place that was taken for it."""
        answer = await self._answer(request, place)
        if answer is not None:
            await self._store(request, answer)

    async def _answer_accounted(self) -> bool:
        """Answer the lines that a replica before this one ran, and died before it stored it.

        Each is run again as the same request, whatever has become of its key and its batch: it is
        paid for.

        Returns:
            False: this replica leaves the batch; or it is over, and nobody knows yet what ran.
        """
        if self._knows_accounts:
            return True
        self._knows_accounts = await self._options.until_accounted()
        if not self._knows_accounts and self._over.is_set():
            self._is_late = not self._is_left
            logger.warning("%s does not end before the ledger has what ran of it", self._id)
            return False
        requests = [] if self._is_left else await self._find_accounted()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_SECONDS) as self._again, asyncio.TaskGroup() as tasks:
                for request in requests:
                    await self._places.take()
                    task = tasks.create_task(self._run_again(request))
                    task.add_done_callback(lambda _: self._places.free())
        self._again = None
        return not self._is_left

    async def _find_accounted(self) -> list[LineRequest]:
        """Return the lines without an answer that ran, or may have, and note which attempt."""
        accounted: dict[int, int] = {}
        found: list[LineRequest] = []
        async with contextlib.aclosing(self._open_groups()) as groups:
            async for group in groups:
                ids = [request_id for request in group for request_id in request.request_ids]
                for request_id in await self._batches.accounted(ids):
                    number, attempt = map(int, request_id.rsplit("-", 2)[1:])
                    accounted[number] = max(attempt, accounted.get(number, 0))
                found += [request for request in group if request.number in accounted]
        self._accounted = accounted
        return found

    async def _run_again(self, request: LineRequest) -> None:
        """Run a line that ran before, in the place that was taken for it."""
        attempt = self._accounted[request.number]  # and no other: it would be paid for, too
        for number in itertools.count():
            answer = await self._ask(request.call(attempt, is_accounted=True))
            if answer.retry_after_seconds is None:
                await self._store(request, request.answered(attempt, answer))
                return
            pause = pause_seconds(number, first=FIRST_PAUSE_SECONDS, longest=MAX_PAUSE_SECONDS)
            await asyncio.sleep(max(answer.retry_after_seconds, pause))

    async def _answer(self, request: LineRequest, place: Place) -> Answer | None:
        """Return a line's answer; None: the batch ends before there is one."""
        if self._full:
            return request.failed(StorageFullError.code, self._full)
        accounted = self._accounted.get(request.number)
        for number in range(MAX_TRIES):
            attempt = number if accounted is None else accounted
            call = request.call(attempt, is_accounted=accounted is not None)
            answer = await self._ask(call)
            if answer.retry_after_seconds is None or number == MAX_TRIES - 1:
                break
            pause = pause_seconds(number, first=FIRST_PAUSE_SECONDS, longest=MAX_PAUSE_SECONDS)
            if not await self._pause(max(answer.retry_after_seconds, pause), place):
                return None
        return request.answered(attempt, answer)

    async def _pause(self, seconds: float, place: Place) -> bool:
        """Wait, and leave the place to other batches meanwhile; False: the batch is to end."""
        place.free()
        self._num_waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._over.wait()
        finally:
            self._num_waiting -= 1
        return await self._unless_over(place.take)

    async def _store(self, request: LineRequest, answer: Answer) -> None:
        try:
            await self._record([answer], is_limited=not self._full)
        except (StorageFullError, UnavailableError) as error:
            self._full = str(error)
            answer = request.failed(StorageFullError.code, self._full)
            await self._record([answer], is_limited=False)
        metrics.BATCH_LINES.labels("failed" if answer.has_error else "completed").inc()

    async def _record(self, answers: Sequence[Answer], *, is_limited: bool) -> None:
        for attempt in range(WRITE_TRIES):
            try:
                status = await self._batches.record(
                    self._batch, self._options.owner, answers, is_limited=is_limited
                )
                self._hear(status)
                return
            except (SQLAlchemyError, OSError) as error:
                if attempt == WRITE_TRIES - 1:
                    raise
                logger.warning("%s: an answer is not stored yet: %r", self._id, error)
                await asyncio.sleep(WRITE_PAUSE_SECONDS)

    async def _finish(self) -> None:
        """End the batch, as cancelled if it was cancelled at any moment before."""
        owner = self._options.owner
        if self._status != "cancelling":
            is_expired = self._is_expired or not self._is_answered
            if is_expired and not await self._answer_accounted():
                return
            if is_expired:
                hours = self._batch["completion_window"]
                message = f"This request was not run within the completion window of {hours}."
                await self._batches.note(self._id, owner, "finalizing")
                await self._fail_lines("batch_expired", message)
            status = "expired" if is_expired else "completed"
            if await self._batches.finish(self._batch, owner, status):
                return
        # Lines of a batch that was cancelled while it was validated may be no requests.
        if not self._is_answered and await self._has_begun():
            if not await self._answer_accounted():
                return
            message = "This request has no answer: the batch was cancelled before."
            await self._fail_lines("batch_cancelled", message)
        await self._batches.finish(self._batch, owner, "cancelled")

    async def _has_begun(self) -> bool:
        """Tell whether the input was found good, by this replica or by one before it."""
        row = await self._batches.get(self._batch["tenant"], self._id, of_messages=None)
        return bool(row["num_lines"])

    async def _fail_lines(self, code: str, message: str) -> None:
        """Answer every line that has no answer with an error, some at once."""
        not_run = (code, message)
        lost = ("answer_lost", "This request ran, and has a receipt, but its answer was lost.")
        async with contextlib.aclosing(self._open_groups()) as groups:
            async for group in groups:
                failed = [
                    request.failed(*(lost if request.number in self._accounted else not_run))
                    for request in group
                ]
                await self._record(failed, is_limited=False)

    async def _keep_lease(self) -> None:
        """Renew until cancelled; hear of changes that clients ask for, here or elsewhere."""
        loop = asyncio.get_running_loop()
        kept_at = loop.time()
        while True:
            change = self._batches.change
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    self._hear(await self._batches.renew(self._id, self._options.owner))
                kept_at = loop.time()
            except (SQLAlchemyError, OSError) as error:  # TimeoutError is an OSError
                if loop.time() - kept_at > LEASE_SECONDS - 2 * RENEW_SECONDS:
                    raise LeaseLostError(self._id) from error
                logger.warning("the lease of %s is not renewed yet: %r", self._id, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_SECONDS):
                    await change.wait()

    def _hear(self, status: str) -> None:
        self._status = status
        if status == "cancelling":
            self._stop_lines()

    def _stop_lines(self) -> None:
        self._over.set()
        for patience in self._patience:
            _end_now(patience)


def _end_now(timeout: asyncio.Timeout | None) -> None:
    if timeout is not None and not timeout.expired():
        timeout.reschedule(asyncio.get_running_loop().time())
