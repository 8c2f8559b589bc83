"""Batches in the database: what they are to run, who is at it, and each line's answer.

Replicas share them. One works on a batch as long as it renews its lease; what it writes counts only
while the lease is its own, in the same transaction. When a lease ends is for one clock to say: the
database server's, or the host's that has the file. Knows no request and no file's content.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.tenancy.tables import DELETED_TENANTS
from pagoda_gateway.accounts.usage_rows import FAILED, LOST
from pagoda_gateway.batches.answer import Answer
from pagoda_gateway.batches.file_store import UNFINISHED, FileStore, new_file
from pagoda_gateway.batches.ids import shown_id
from pagoda_gateway.batches.schemas import MESSAGES, BatchBody
from pagoda_gateway.batches.tables import ANSWERS, BATCHES, FILES
from pagoda_gateway.errors import InvalidRequestError, NotFoundError, OverloadedError, shorten
from pagoda_runtime.identity import new_ulid

WINDOW_SECONDS = 24 * 3600.0
LEASE_SECONDS = 15.0  # workers end what a dead gateway ran within 5 s: before anybody runs it again
CLOCK_STEP_SECONDS = 5.0  # a clock that is set back by less makes no lease end early
MAX_BATCHES = 10_000  # of one tenant; they are forgotten when their files would have expired
MAX_UNFINISHED = 200  # of one tenant
RETRY_AFTER_SECONDS = 60.0
_CANDIDATES = 8
# Not now(), which stands still within a transaction, and so while that waits for a row.
_SERVER_SECONDS = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
_FORGOTTEN_AT_ONCE = 64
_ENDED = sa.func.coalesce(
    *(BATCHES.c[f"{status}_unix_seconds"] for status in ("completed", "failed", "expired")),
    BATCHES.c.cancelled_unix_seconds,
)


class LeaseLostError(Exception):
    """Another replica has the batch, or nobody: whoever thought it its own stops."""


class BatchStore:
    """Every tenant's batches; one that is not the tenant's own does not exist for it."""

    def __init__(
        self,
        database: Database,
        files: FileStore,
        clock: Callable[[], float] | None = None,
        lease_clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep batches in `database`.

        Args:
            database: shared by replicas.
            files: theirs, in the same database.
            clock: Unix seconds; what clients are told, and when batches end. None: the database's.
            lease_clock: when leases end; None: PostgreSQL's own, with SQLite `clock`.
        """
        self._database = database
        self._files = files
        self.clock = clock or database.now
        self._lease_clock = lease_clock or (None if database.is_postgresql else self.clock)
        self._changed = asyncio.Event()  # replaced whenever a client changed something

    async def create(self, tenant: str, api_key_id: str, body: BatchBody) -> sa.RowMapping:
        """Take a batch; return its row.

        Raises:
            InvalidRequestError: its input is no file of the tenant's for batches.
            OverloadedError: the tenant has too many.
        """
        try:
            file = await self._files.get(tenant, body.input_file_id)
        except NotFoundError as error:
            raise InvalidRequestError(str(error), param="input_file_id") from None
        if file["purpose"] != "batch":
            raise InvalidRequestError(
                f"'input_file_id' is a file for {file['purpose']}; it must be one for batch",
                param="input_file_id",
            )
        keep = body.output_expires_after
        most = self._files.limits.keep_seconds
        return await self._create(
            tenant=tenant,
            api_key_id=api_key_id,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            request_metadata=body.metadata,
            output_keep_seconds=min(most, keep.seconds) if keep else most,
            status="validating",
            num_lines=0,
        )

    async def create_of_messages(
        self, tenant: str, api_key_id: str, *, input_file_id: str, num_lines: int, model: str
    ) -> sa.RowMapping:
        """Take a batch of messages, whose lines were found good already; return its row.

        It is in_progress, and has a moment of that once lines of it may have run.

        Raises:
            OverloadedError: the tenant has too many.
        """
        return await self._create(
            tenant=tenant,
            api_key_id=api_key_id,
            endpoint=MESSAGES,
            input_file_id=input_file_id,
            completion_window="24h",
            output_keep_seconds=self._files.limits.keep_seconds,
            status="in_progress",
            num_lines=num_lines,
            model=model,
        )

    async def _create(self, *, tenant: str, **given: Any) -> sa.RowMapping:
        now = self.clock()
        batch_id = f"batch_{new_ulid(now).lower()}"
        values = given | {
            "batch_id": batch_id,
            "tenant": tenant,
            "num_completed": 0,
            "num_failed": 0,
            "created_unix_seconds": now,
            "expires_unix_seconds": now + WINDOW_SECONDS,
            "lease_unix_seconds": 0.0,
        }

        def create(connection: sa.Connection) -> None:
            mine = sa.select(sa.func.count()).select_from(BATCHES)
            mine = mine.where(BATCHES.c.tenant == tenant)
            unfinished = connection.scalar(mine.where(BATCHES.c.status.in_(UNFINISHED))) or 0
            if unfinished >= MAX_UNFINISHED or (connection.scalar(mine) or 0) >= MAX_BATCHES:
                raise OverloadedError(
                    f"{unfinished} of your batches are not finished; the limit is "
                    f"{MAX_UNFINISHED}, and {MAX_BATCHES} with those of the last days",
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                )
            self._files.use(connection, values["input_file_id"])
            connection.execute(sa.insert(BATCHES).values(values))
            if values["status"] == "in_progress":
                _begin_files(connection, values, now)

        await self._database.call(create)
        self._notify()
        return await self.get(tenant, batch_id, of_messages=None)

    async def get(
        self, tenant: str, batch_id: str, *, of_messages: bool | None = False
    ) -> sa.RowMapping:
        """Return a batch's row; `of_messages`: in which API it has to be, None: in any.

        Raises:
            NotFoundError: this tenant has no such batch.
        """
        statement = sa.select(BATCHES).where(
            BATCHES.c.batch_id == comparable(batch_id), *_of(tenant, of_messages)
        )
        row = await self._database.first(statement)
        if row is None:
            raise NotFoundError(f"no batch {shorten(batch_id)}", param="batch_id")
        return row

    async def list_batches(
        self,
        tenant: str,
        *,
        after: str | None,
        limit: int,
        before: str | None = None,
        of_messages: bool = False,
    ) -> list[sa.RowMapping]:
        """Return up to `limit` + 1 rows, the newest first; `after` is the last id before.

        With `before`, the first id of the page behind, they are the next newer ones, the oldest
        first.
        """
        key = BATCHES.c.batch_id
        statement = sa.select(BATCHES).where(*_of(tenant, of_messages)).limit(limit + 1)
        statement = statement.order_by(key.desc() if before is None else key)
        if after is not None:
            statement = statement.where(key < comparable(after))
        if before is not None:
            statement = statement.where(key > comparable(before))
        return await self._database.rows(statement)

    async def cancel(
        self, tenant: str, batch_id: str, *, of_messages: bool = False
    ) -> sa.RowMapping:
        """Ask for a batch's end; return its row.

        Raises:
            NotFoundError: see `get`.
            InvalidRequestError: it has ended in another way.
        """
        statement = (
            sa.update(BATCHES)
            .where(
                BATCHES.c.batch_id == comparable(batch_id),
                BATCHES.c.status.in_(("validating", "in_progress")),
                *_of(tenant, of_messages),
            )
            .values(status="cancelling", cancelling_unix_seconds=self.clock())
        )
        await self._database.call(lambda c: c.execute(statement))
        row = await self.get(tenant, batch_id, of_messages=of_messages)
        if row["status"] not in ("cancelling", "cancelled"):
            raise InvalidRequestError(
                f"{shown_id(row)} is {row['status']}; only a batch that is validating or "
                "in_progress can be cancelled",
                param="batch_id",
            )
        self._notify()
        return row

    async def delete(self, batch: sa.RowMapping) -> None:
        """Delete a batch that has ended, with its files."""
        for name in ("input_file_id", "output_file_id", "error_file_id"):
            if batch[name] is not None:
                with contextlib.suppress(NotFoundError):  # else the sweeper has it
                    await self._files.delete(batch["tenant"], batch[name])
        statement = sa.delete(BATCHES).where(BATCHES.c.batch_id == batch["batch_id"])
        await self._database.call(lambda c: c.execute(statement))

    @property
    def change(self) -> asyncio.Event:
        """Set when a client changes something here next; take it before you look."""
        return self._changed

    async def claim(self, owner: str, but_of: Sequence[str] = ()) -> sa.RowMapping | None:
        """Take the lease of a batch that nobody works on; None: there is none.

        Tenants with fewer batches at work come first, then older batches; `but_of` are left out.
        """
        now = self._lease_now()
        is_free = sa.not_(_is_leased(BATCHES, now))
        others = BATCHES.alias()
        at_work = (
            sa.select(sa.func.count())
            .where(others.c.tenant == BATCHES.c.tenant)
            .where(others.c.status.in_(UNFINISHED), _is_leased(others, now))
            .scalar_subquery()
        )
        candidates = (
            sa.select(BATCHES.c.batch_id)
            .where(BATCHES.c.status.in_(UNFINISHED), is_free, BATCHES.c.tenant.not_in(but_of))
            .order_by(at_work, BATCHES.c.batch_id)
            .limit(_CANDIDATES)
        )

        # Who had it may have run lines: a gateway of before 0014 does not `note` it of messages.
        was_at_work = sa.and_(BATCHES.c.owner.is_not(None), BATCHES.c.num_lines > 0)
        noted = BATCHES.c.in_progress_unix_seconds
        begun = sa.case((was_at_work, sa.func.coalesce(noted, self.clock())), else_=noted)

        def claim(connection: sa.Connection) -> sa.RowMapping | None:
            for batch_id in connection.scalars(candidates).all():
                taken = connection.execute(
                    sa.update(BATCHES)
                    .where(BATCHES.c.batch_id == batch_id, is_free)
                    .values(
                        owner=owner,
                        lease_unix_seconds=now + LEASE_SECONDS,
                        in_progress_unix_seconds=begun,
                    )
                )
                if taken.rowcount:
                    mine = sa.select(BATCHES).where(BATCHES.c.batch_id == batch_id)
                    return connection.execute(mine).mappings().one()
            return None

        return await self._database.call(claim)

    async def renew(self, batch_id: str, owner: str) -> str:
        """Keep the lease for longer; return the batch's status.

        Raises:
            LeaseLostError: it is no longer the owner's.
        """
        return await self._database.call(lambda c: self._keep(c, batch_id, owner))

    async def release(self, batch_id: str, owner: str) -> None:
        """Let anybody have the batch."""
        statement = (
            sa.update(BATCHES)
            .where(BATCHES.c.batch_id == batch_id, BATCHES.c.owner == owner)
            .values(owner=None, lease_unix_seconds=0.0)
        )
        await self._database.call(lambda c: c.execute(statement))
        self._notify()

    async def begin(self, batch: sa.RowMapping, owner: str, *, num_lines: int, model: str) -> str:
        """Note that the input is good; return the status, which may be cancelling."""
        now, batch_id = self.clock(), batch["batch_id"]

        def begin(connection: sa.Connection) -> str:
            if (status := self._keep(connection, batch_id, owner)) != "validating":
                return status
            _begin_files(connection, batch, now)
            return self._change(
                connection, batch_id, "in_progress", num_lines=num_lines, model=model
            )

        return await self._database.call(begin)

    async def fail(self, batch_id: str, owner: str, errors: Sequence[dict[str, Any]]) -> str:
        """End a batch whose input is not good; return the status, which may be cancelling."""

        def fail(connection: sa.Connection) -> str:
            if (status := self._keep(connection, batch_id, owner)) != "validating":
                return status
            return self._change(connection, batch_id, "failed", errors=list(errors))

        return await self._database.call(fail)

    async def answered_lines(self, batch_id: str) -> set[int]:
        """Return the lines that have their answer."""
        statement = sa.select(ANSWERS.c.line).where(ANSWERS.c.batch_id == batch_id)
        return set(await self._database.call(lambda c: c.scalars(statement).all()))

    async def record(
        self, batch: sa.RowMapping, owner: str, answers: Iterable[Answer], *, is_limited: bool
    ) -> str:
        """Store answers and count them; a line that has one keeps it. Returns the status.

        Raises:
            LeaseLostError: the batch is another's; nothing was stored.
            StorageFullError, UnavailableError: `is_limited`, and there is no room; as well.
        """
        batch_id, tenant = batch["batch_id"], batch["tenant"]

        def record(connection: sa.Connection) -> str:
            status = self._keep(connection, batch_id, owner)
            for answer in answers:
                stored = connection.execute(
                    self._database.insert(ANSWERS)
                    .values(
                        batch_id=batch_id,
                        line=answer.line,
                        has_error=answer.has_error,
                        num_bytes=len(answer.data),
                        data=answer.data,
                    )
                    .on_conflict_do_nothing()
                    .returning(ANSWERS.c.line)
                )
                if stored.first() is None:
                    continue
                file_id = answers_file_id(batch_id, has_errors=answer.has_error)
                self._files.grow(
                    connection, tenant, file_id, len(answer.data), is_limited=is_limited
                )
                count = "num_failed" if answer.has_error else "num_completed"
                more = {count: 1, **answer.usage._asdict()}
                if answer.not_run:
                    more[f"num_{answer.not_run}"] = 1
                connection.execute(
                    sa.update(BATCHES)
                    .where(BATCHES.c.batch_id == batch_id)
                    .values({name: BATCHES.c[name] + number for name, number in more.items()})
                )
            return status

        return await self._database.call(record)

    async def accounted(self, request_ids: Sequence[str]) -> list[str]:
        """Return those that ran, or may have: the ledger has an account that may cost something."""
        has_failed = USAGE.c.outcome.in_((FAILED, LOST))
        statement = sa.select(USAGE.c.request_id).where(
            USAGE.c.request_id.in_(request_ids), sa.or_(USAGE.c.outcome.is_(None), ~has_failed)
        )
        return list(await self._database.call(lambda c: c.scalars(statement).all()))

    async def note(
        self, batch_id: str, owner: str, moment: Literal["in_progress", "finalizing"]
    ) -> None:
        """Note that lines begin to run, or that the window is over: it ends as expired then.

        Raises:
            LeaseLostError: it is no longer the owner's.
        """

        def note(connection: sa.Connection) -> None:
            self._keep(connection, batch_id, owner)
            connection.execute(
                sa.update(BATCHES)
                .where(BATCHES.c.batch_id == batch_id)
                .values({f"{moment}_unix_seconds": self.clock()})
            )

        await self._database.call(note)

    async def finish(self, batch: sa.RowMapping, owner: str, status: str) -> bool:
        """End a batch as completed, expired or cancelled, and show its files.

        Returns:
            False, and nothing is done, if it was cancelled meanwhile and `status` is another.
        """
        now, batch_id = self.clock(), batch["batch_id"]

        def finish(connection: sa.Connection) -> bool:
            is_cancelled = self._keep(connection, batch_id, owner) == "cancelling"
            if is_cancelled != (status == "cancelled"):
                return False
            shown = {}
            for has_errors, column in ((False, "output_file_id"), (True, "error_file_id")):
                file_id = answers_file_id(batch_id, has_errors=has_errors)
                written = sa.and_(FILES.c.file_id == file_id, FILES.c.state == "writing")
                connection.execute(sa.delete(FILES).where(written, FILES.c.num_bytes == 0))
                expires = now + batch["output_keep_seconds"]
                is_shown = connection.execute(
                    sa.update(FILES).where(written).values(
                        state="ready", created_unix_seconds=now, expires_unix_seconds=expires
                    )
                ).rowcount  # fmt: skip
                shown[column] = file_id if is_shown else None
            self._change(connection, batch_id, status, finalizing_unix_seconds=now, **shown)
            return True

        return await self._database.call(finish)

    async def forget(self) -> None:
        """Delete batches that ended and whose files are gone: expired, or a deleted tenant's."""
        late = self.clock() - self._files.limits.keep_seconds
        old = (
            sa.select(BATCHES.c.batch_id)
            .where(
                sa.or_(late >= _ENDED, BATCHES.c.tenant.in_(DELETED_TENANTS)),
                BATCHES.c.status.not_in(UNFINISHED),
            )
            .limit(_FORGOTTEN_AT_ONCE)
        )
        statement = sa.delete(BATCHES).where(BATCHES.c.batch_id.in_(old))
        await self._database.call(lambda c: c.execute(statement))

    def _lease_now(self) -> sa.ColumnElement[float]:
        """Return the time by which leases end, as the statement that it is put into finds it."""
        return _SERVER_SECONDS if self._lease_clock is None else sa.literal(self._lease_clock())

    def _keep(self, connection: sa.Connection, batch_id: str, owner: str) -> str:
        """Renew the lease, which locks the row for this transaction; return the status."""
        kept = connection.execute(
            sa.update(BATCHES)
            .where(BATCHES.c.batch_id == batch_id, BATCHES.c.owner == owner)
            .values(lease_unix_seconds=self._lease_now() + LEASE_SECONDS)
        )
        if not kept.rowcount:
            raise LeaseLostError(batch_id)
        found = sa.select(BATCHES.c.status).where(BATCHES.c.batch_id == batch_id)
        return str(connection.scalar(found))

    def _change(self, connection: sa.Connection, batch_id: str, status: str, **values: Any) -> str:
        values |= {"status": status, f"{status}_unix_seconds": self.clock()}
        connection.execute(sa.update(BATCHES).where(BATCHES.c.batch_id == batch_id).values(values))
        return status

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _of(tenant: str, of_messages: bool | None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for a tenant's batches in one of the APIs; None: in any."""
    mine = [BATCHES.c.tenant == tenant]
    if of_messages is not None:
        is_message = BATCHES.c.endpoint == MESSAGES
        mine.append(is_message if of_messages else ~is_message)
    return mine


def _begin_files(connection: sa.Connection, batch: Mapping[Any, Any], now: float) -> None:
    """Make the files that a batch's answers count in; nobody sees them before the end."""
    batch_id = batch["batch_id"]
    for has_errors in (False, True):
        name = f"{batch_id}_{'errors' if has_errors else 'output'}.jsonl"
        file = new_file(
            answers_file_id(batch_id, has_errors=has_errors), batch["tenant"],
            "batch_output", name, now, now + batch["output_keep_seconds"],
        )  # fmt: skip
        file |= {"batch_id": batch_id, "has_errors": has_errors}
        connection.execute(sa.insert(FILES).values(file))


def _is_leased(batches: sa.FromClause, now: sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    """Return whether somebody has a batch.

    A lease that ends later than any that was taken by now is of a clock that was set back since.
    """
    ends = batches.c.lease_unix_seconds
    return sa.and_(ends > now, ends <= now + (LEASE_SECONDS + CLOCK_STEP_SECONDS))


def answers_file_id(batch_id: str, *, has_errors: bool) -> str:
    """Return the id of the file that a batch's answers are in."""
    return f"file-{batch_id.removeprefix('batch_')}-{'errors' if has_errors else 'output'}"
