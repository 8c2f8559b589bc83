"""Files in the database, by tenant: written in chunks, read in chunks, within sums of bytes.

No more than a chunk or one answer is in memory at a time. Knows no HTTP and not what is in a file.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.tenancy.tables import DELETED_TENANTS
from pagoda_gateway.batches.ids import shown_id
from pagoda_gateway.batches.tables import ANSWERS, BATCHES, FILE_CHUNKS, FILES, STORAGE
from pagoda_gateway.errors import (
    InvalidRequestError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
    shorten,
)
from pagoda_runtime.identity import new_ulid

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
MAX_FILES = 10_000  # of one tenant, whatever their size
UPLOAD_SECONDS = 3600.0  # an upload from which nothing came for so long is given up
RETRY_AFTER_SECONDS = 60.0
UNFINISHED = ("validating", "in_progress", "cancelling")
_ROWS_AT_ONCE = 64
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How much is kept, in bytes, and for how long."""

    file_bytes: int
    tenant_bytes: int
    total_bytes: int
    keep_seconds: float


class FileStore:
    """Every tenant's files; one that is not the tenant's own does not exist for it."""

    def __init__(
        self, database: Database, limits: FileLimits, clock: Callable[[], float] | None = None
    ) -> None:
        self._database = database
        self._clock = clock or database.now
        self.limits = limits

    async def begin(self, tenant: str, purpose: str, filename: str) -> str:
        """Make a file that nobody sees until `finish`; return its id.

        Raises:
            StorageFullError: the tenant has too many.
        """
        now = self._clock()
        file_id = f"file-{new_ulid(now).lower()}"

        def begin(connection: sa.Connection) -> None:
            num_files = connection.execute(
                sa.select(sa.func.count()).select_from(FILES).where(FILES.c.tenant == tenant)
            ).scalar_one()
            if num_files >= MAX_FILES:
                raise StorageFullError(f"you keep {num_files} files, the limit; delete some")
            values = new_file(file_id, tenant, purpose, filename, now, now + _DAY_SECONDS)
            connection.execute(sa.insert(FILES).values(values))

        await self._database.call(begin)
        return file_id

    async def append(self, tenant: str, file_id: str, number: int, data: bytes) -> None:
        """Write a file's next chunk, of CHUNK_BYTES at most.

        Raises:
            StorageFullError, UnavailableError: the tenant keeps too much, or all of them do.
            NotFoundError: it was given up meanwhile.
        """
        assert len(data) <= CHUNK_BYTES, "whoever writes cuts"

        def append(connection: sa.Connection) -> None:
            self.grow(connection, tenant, file_id, len(data))
            values = {"file_id": file_id, "number": number, "data": data}
            connection.execute(sa.insert(FILE_CHUNKS).values(values))

        await self._database.call(append)

    async def finish(
        self, file_id: str, *, purpose: str, filename: str, keep_seconds: float | None
    ) -> sa.RowMapping:
        """Let a file be seen; return its row."""
        keep = self.limits.keep_seconds
        statement = (
            sa.update(FILES)
            .where(FILES.c.file_id == file_id, FILES.c.state == "writing")
            .values(
                state="ready",
                purpose=purpose,
                filename=filename,
                expires_unix_seconds=FILES.c.created_unix_seconds + min(keep, keep_seconds or keep),
            )
        )

        def finish(connection: sa.Connection) -> sa.RowMapping:
            connection.execute(statement)
            found = sa.select(FILES).where(FILES.c.file_id == file_id)
            return connection.execute(found).mappings().one()

        return await self._database.call(finish)

    async def get(self, tenant: str, file_id: str) -> sa.RowMapping:
        """Return a file's row.

        Raises:
            NotFoundError: this tenant has no such file.
        """
        statement = self._visible(tenant).where(FILES.c.file_id == comparable(file_id))
        row = await self._database.first(statement)
        if row is None:
            raise _missing(file_id)
        return row

    async def input_of(self, batch: sa.RowMapping) -> sa.RowMapping | None:
        """Return a batch's input, which may have expired since the batch began."""
        statement = sa.select(FILES).where(
            FILES.c.tenant == batch["tenant"],
            FILES.c.file_id == batch["input_file_id"],
            FILES.c.state == "ready",
        )
        return await self._database.first(statement)

    async def list_files(
        self,
        tenant: str,
        *,
        purpose: str | None,
        after: str | None,
        limit: int,
        order: Literal["asc", "desc"],
    ) -> list[sa.RowMapping]:
        """Return up to `limit` + 1 rows, by time; `after` is the last id of the page before."""
        statement = self._visible(tenant).limit(limit + 1)
        key = FILES.c.file_id
        statement = statement.order_by(key if order == "asc" else key.desc())
        if after is not None:
            last = comparable(after)
            statement = statement.where(key > last if order == "asc" else key < last)
        if purpose is not None:
            statement = statement.where(FILES.c.purpose == purpose)
        return await self._database.rows(statement)

    async def content(self, *files: sa.RowMapping) -> AsyncIterator[bytes]:
        """Yield what is in a file, in order; a batch's answers in the order of its lines.

        `files`: one, or both of a batch's answers, which come as if they were one.

        Raises:
            NotFoundError: it was deleted meanwhile.
        """
        size, file = 0, files[0]
        pieces = self._chunks(file) if file["batch_id"] is None else self._answers(files)
        async for data in pieces:
            size += len(data)
            yield data
        if size != sum(each["num_bytes"] for each in files):
            raise _missing(file["file_id"])

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file and all that is in it.

        Raises:
            NotFoundError: this tenant has no such file.
            InvalidRequestError: a batch is at work on it.
        """
        row = await self.get(tenant, file_id)
        await self._remove(row)

    async def discard(self, file_id: str) -> None:
        """Delete a file that was not finished."""
        statement = sa.select(FILES).where(FILES.c.file_id == file_id)
        row = await self._database.first(statement)
        if row is not None:
            await self._remove(row)

    async def sweep(self) -> int:
        """Delete what has expired, deleted tenants' files, and what never ended; count."""
        now = self._clock()
        is_input = sa.exists(
            sa.select(BATCHES.c.batch_id).where(
                BATCHES.c.input_file_id == FILES.c.file_id, BATCHES.c.status.in_(UNFINISHED)
            )
        )
        is_old = FILES.c.changed_unix_seconds < now - UPLOAD_SECONDS
        is_upload = sa.and_(FILES.c.state == "writing", FILES.c.batch_id.is_(None))
        is_over = sa.or_(FILES.c.expires_unix_seconds <= now, FILES.c.tenant.in_(DELETED_TENANTS))
        is_expired = sa.and_(FILES.c.state == "ready", is_over)
        statement = (
            sa.select(FILES)
            .where(sa.or_(
                FILES.c.state == "deleting",
                sa.and_(is_upload, is_old),
                sa.and_(is_expired, ~is_input),
            ))
            .limit(_ROWS_AT_ONCE)
        )  # fmt: skip
        rows = await self._database.rows(statement)
        for row in rows:
            with contextlib.suppress(InvalidRequestError):  # a batch has begun meanwhile
                await self._remove(row)
        return len(rows)

    def use(self, connection: sa.Connection, file_id: str) -> None:
        """Keep a file from being deleted until the transaction that makes a batch of it ends.

        Raises:
            InvalidRequestError: it was deleted meanwhile.
        """
        is_ready = sa.and_(FILES.c.file_id == file_id, FILES.c.state == "ready")
        kept = sa.update(FILES).where(is_ready).values(changed_unix_seconds=self._clock())
        if not connection.execute(kept).rowcount:
            raise InvalidRequestError(f"{file_id} is being deleted", param="input_file_id")

    def grow(
        self,
        connection: sa.Connection,
        tenant: str,
        file_id: str,
        num_bytes: int,
        *,
        is_limited: bool = True,
    ) -> None:
        """Count so many bytes more in a file that is being written.

        Raises:
            StorageFullError, UnavailableError: they are too many; the transaction must not go on.
            NotFoundError: nobody writes it any more.
        """
        grown = connection.execute(
            sa.update(FILES)
            .where(FILES.c.file_id == file_id, FILES.c.state == "writing")
            .values(num_bytes=FILES.c.num_bytes + num_bytes, changed_unix_seconds=self._clock())
        )
        if grown.rowcount != 1:
            raise _missing(file_id)
        kept = STORAGE.c.num_bytes + num_bytes
        connection.execute(
            self._database.insert(STORAGE)
            .values(tenant=tenant, num_bytes=num_bytes)
            .on_conflict_do_update(index_elements=["tenant"], set_={"num_bytes": kept})
        )
        if is_limited:
            self._check_limits(connection, tenant)

    def _check_limits(self, connection: sa.Connection, tenant: str) -> None:
        limit, own = self.limits, STORAGE.c.tenant == tenant
        kept = connection.execute(sa.select(STORAGE.c.num_bytes).where(own)).scalar_one()
        if kept > limit.tenant_bytes:
            raise StorageFullError(
                f"your files would have {kept} bytes; the limit is {limit.tenant_bytes}. Delete "
                "files that you need no longer (DELETE /v1/files/ID)."
            )
        total = connection.execute(sa.select(sa.func.sum(STORAGE.c.num_bytes))).scalar_one()
        if total > limit.total_bytes:
            raise UnavailableError(
                f"this server keeps {limit.total_bytes} bytes of files and has no room for more; "
                "try again later",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )

    def _visible(self, tenant: str) -> sa.Select[tuple[object, ...]]:
        return sa.select(FILES).where(
            FILES.c.tenant == tenant,
            FILES.c.state == "ready",
            FILES.c.expires_unix_seconds > self._clock(),
        )

    async def _chunks(self, file: sa.RowMapping) -> AsyncIterator[bytes]:
        number = 0
        while True:
            statement = sa.select(FILE_CHUNKS.c.data).where(
                FILE_CHUNKS.c.file_id == file["file_id"], FILE_CHUNKS.c.number == number
            )
            data = await self._database.scalar(statement)
            if data is None:
                return
            yield data
            number += 1

    async def _answers(self, files: Sequence[sa.RowMapping]) -> AsyncIterator[bytes]:
        """Yield answers, many small ones or one large one at a time."""
        mine = sa.and_(
            ANSWERS.c.batch_id == files[0]["batch_id"],
            ANSWERS.c.has_error.in_([file["has_errors"] for file in files]),
        )
        last = 0
        while True:
            sizes = (
                sa.select(ANSWERS.c.line, ANSWERS.c.num_bytes)
                .where(mine, ANSWERS.c.line > last)
                .order_by(ANSWERS.c.line)
                .limit(_ROWS_AT_ONCE)
            )
            rows = await self._database.rows(sizes)
            if not rows:
                return
            first, size = last, 0
            for row in rows:
                size += row["num_bytes"]
                if last > first and size > CHUNK_BYTES:
                    break
                last = row["line"]
            texts = (
                sa.select(ANSWERS.c.data)
                .where(mine, ANSWERS.c.line > first, ANSWERS.c.line <= last)
                .order_by(ANSWERS.c.line)
            )
            yield b"".join(row["data"] for row in await self._database.rows(texts))

    async def _remove(self, file: sa.RowMapping) -> None:
        """Delete all rows of a file, a few in each transaction, its own the last.

        Raises:
            InvalidRequestError: a batch is at work on it.
        """
        file_id = file["file_id"]
        own = FILES.c.file_id == file_id

        def hide(connection: sa.Connection) -> sa.RowMapping | None:
            # First, since it waits for batches that are being made of the file: see `use`.
            connection.execute(sa.update(FILES).where(own).values(state="deleting"))
            user = connection.execute(_users(file_id)).mappings().first()
            if user is not None:
                raise InvalidRequestError(
                    f"{file_id} is the input of {shown_id(user)}, which is not finished; cancel "
                    "that first",
                    param="file_id",
                )
            return connection.execute(sa.select(FILES).where(own)).mappings().first()

        hidden = await self._database.call(hide)  # with all bytes: nobody writes any more
        if hidden is None:
            return
        if file["batch_id"] is None:
            table, key = FILE_CHUNKS, FILE_CHUNKS.c.number
            mine = FILE_CHUNKS.c.file_id == file_id
        else:
            table, key = ANSWERS, ANSWERS.c.line
            mine = sa.and_(
                ANSWERS.c.batch_id == file["batch_id"], ANSWERS.c.has_error == file["has_errors"]
            )
        some = sa.select(key).where(mine).limit(_ROWS_AT_ONCE)
        step = sa.delete(table).where(mine, key.in_(some))
        while await self._database.call(lambda c: c.execute(step).rowcount):
            pass

        def forget(connection: sa.Connection) -> None:
            if connection.execute(sa.delete(FILES).where(own)).rowcount:  # no other was faster
                left = STORAGE.c.num_bytes - hidden["num_bytes"]
                mine = sa.update(STORAGE).where(STORAGE.c.tenant == file["tenant"])
                connection.execute(mine.values(num_bytes=left))

        await self._database.call(forget)


def new_file(
    file_id: str, tenant: str, purpose: str, filename: str, now: float, expires: float
) -> dict[str, object]:
    """Return the row of a file that is about to be written."""
    return {
        "file_id": file_id,
        "tenant": tenant,
        "purpose": purpose,
        "filename": filename,
        "num_bytes": 0,
        "state": "writing",
        "created_unix_seconds": now,
        "changed_unix_seconds": now,
        "expires_unix_seconds": expires,
    }


def _users(file_id: str) -> sa.Select[tuple[str, str]]:
    return (
        sa.select(BATCHES.c.batch_id, BATCHES.c.endpoint)
        .where(BATCHES.c.input_file_id == file_id, BATCHES.c.status.in_(UNFINISHED))
        .limit(1)
    )


def _missing(file_id: str) -> NotFoundError:
    return NotFoundError(
        f"no file {shorten(file_id)}: it was never here, was deleted, or has expired",
        param="file_id",
    )
