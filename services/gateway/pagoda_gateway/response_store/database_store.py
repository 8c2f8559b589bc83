"""Responses kept in the database of the gateways."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from pagoda_gateway.accounts.database import NOT_ANSWERING, Database, comparable, refusal
from pagoda_gateway.accounts.tenancy.tables import DELETED_TENANTS
from pagoda_gateway.errors import StorageFullError, UnavailableError
from pagoda_gateway.large_bodies import LargeBodies
from pagoda_gateway.response_store.tables import RESPONSE_STORAGE, RESPONSES
from pagoda_gateway.responses.kept import Become, Change, Kept, ResponseStore, Value

logger = logging.getLogger(__name__)

ENTRY_BYTES = 512  # of a value beside its text
RETRY_AFTER_SECONDS = 2.0
_ROWS_AT_ONCE = 64

_NEW = sa.insert(RESPONSES)
_TOTAL = sa.select(sa.func.sum(RESPONSE_STORAGE.c.num_bytes))

T = TypeVar("T")
_Row = dict[str, Any]


class DatabaseResponseStore(ResponseStore):
    """Rows of a table, and the bytes of each tenant in another.

    What comes while a transaction runs is written in the next one, all of it at once. A transaction
    changes the bytes of several tenants in the order of their names: two replicas never wait for
    each other.
    """

    def __init__(
        self,
        database: Database,
        large: LargeBodies,
        *,
        gateway_id: str,
        max_bytes: int,
        keep_seconds: float,
        run_seconds: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep in `database`.

        Args:
            database: of all replicas.
            large: where what is large is read.
            gateway_id: ours.
            max_bytes: of all; beyond, the tenant that holds most loses its oldest.
            keep_seconds: nothing is found longer than this after its end.
            run_seconds: nothing runs longer than this.
            clock: unix seconds.
        """
        self._database = database
        self._large = large
        self._gateway_id = gateway_id
        self._max_bytes = max_bytes
        self._keep_seconds = keep_seconds
        self._run_seconds = run_seconds
        self._clock = clock or database.now
        self._new: list[tuple[_Row, asyncio.Future[int]]] = []
        self._writer: asyncio.Task[None] | None = None
        grown = database.insert(RESPONSE_STORAGE)
        self._grown = grown.on_conflict_do_update(
            index_elements=["tenant"],
            set_={"num_bytes": RESPONSE_STORAGE.c.num_bytes + grown.excluded.num_bytes},
        )

    def now(self) -> float:
        """See `ResponseStore`."""
        return self._clock()

    async def put(
        self, tenant: str, object_id: str, value: Value, *, is_running: bool = False
    ) -> bool:
        """See `ResponseStore`."""
        text = orjson.dumps(value)
        num_bytes = len(text) + ENTRY_BYTES
        if num_bytes > self._max_bytes:  # nothing that went could make room
            return False
        row: _Row = {
            "object_id": object_id,
            "tenant": tenant,
            "gateway_id": self._gateway_id if is_running else None,
            "num_bytes": num_bytes,
            "expires_unix_seconds": self._expiry(run_seconds=self._run_seconds * is_running),
            "value": text,
        }
        return await self._has_room(tenant, object_id, await self._insert(row))

    async def end(
        self,
        tenant: str,
        object_id: str,
        become: Become,
        also: Change | None = None,
    ) -> Value | None:
        """See `ResponseStore`."""
        is_running = RESPONSES.c.gateway_id.is_not(None)
        return await self._change(tenant, object_id, is_running, become, also)

    async def change(self, tenant: str, object_id: str, become: Become) -> Value | None:
        """See `ResponseStore`."""
        return await self._change(tenant, object_id, RESPONSES.c.gateway_id.is_(None), become)

    async def _change(
        self,
        tenant: str,
        object_id: str,
        condition: sa.ColumnElement[bool],
        become: Become,
        also: Change | None = None,
    ) -> Value | None:
        def change(connection: sa.Connection) -> tuple[Value | None, int]:
            value, grown = self._changed(connection, tenant, object_id, condition, become)
            if value is None:
                return None, 0
            if also is not None:
                other_id, become_other = also
                has_ended = RESPONSES.c.gateway_id.is_(None)
                grown += self._changed(connection, tenant, other_id, has_ended, become_other)[1]
            return value, self._grow(connection, {tenant: grown})

        value, total = await self._call(change)
        is_kept = await self._has_room(tenant, object_id, total)
        return value if is_kept else None

    def _changed(
        self,
        connection: sa.Connection,
        tenant: str,
        object_id: str,
        condition: sa.ColumnElement[bool],
        become: Become,
    ) -> tuple[Value | None, int]:
        """Change one row, if it is there and as it should be; return its value and its growth."""
        own = sa.and_(
            self._own(tenant, object_id), RESPONSES.c.expires_unix_seconds > self._clock()
        )
        found = sa.select(RESPONSES.c.value, RESPONSES.c.num_bytes).where(own, condition)
        while True:
            row = connection.execute(found.with_for_update()).first()
            if row is None:
                return None, 0
            value = become(orjson.loads(row.value))
            text = orjson.dumps(value)
            num_bytes = len(text) + ENTRY_BYTES
            # How something has ended is always kept, or all of it goes where there is no room.
            if num_bytes > max(self._max_bytes, row.num_bytes + ENTRY_BYTES):
                raise StorageFullError(
                    f"{object_id} would take {num_bytes} bytes; all that is kept may take "
                    f"{self._max_bytes} (PAGODA_GATEWAY_RESPONSE_STORE_BYTES)"
                )
            # SQLite locks nothing for a read: another process may have changed it since.
            unchanged = sa.update(RESPONSES).where(own, RESPONSES.c.value == row.value)
            changed = unchanged.values(
                gateway_id=None,
                num_bytes=num_bytes,
                expires_unix_seconds=self._expiry(),
                value=text,
            )
            if connection.execute(changed).rowcount:
                return value, num_bytes - row.num_bytes

    async def _has_room(self, tenant: str, object_id: str, total: int) -> bool:
        """Forget what is too much of `total` bytes; return whether this one is still there."""
        while total > self._max_bytes:
            dropped, total = await self._call(self._drop_one)
            if dropped == object_id:
                return False
            if dropped is None:  # all the others run, and so does this one
                await self.delete(tenant, object_id)
                return False
        return True

    async def get(self, tenant: str, object_id: str) -> Kept | None:
        """See `ResponseStore`."""
        found = sa.select(RESPONSES.c.value, RESPONSES.c.gateway_id).where(
            self._own(tenant, object_id), RESPONSES.c.expires_unix_seconds > self._clock()
        )
        with _answering():
            row = await self._database.first(found)
        if row is None:
            return None
        text = row["value"]
        value = await self._large.read(tenant, len(text), partial(orjson.loads, text))
        return Kept(value, row["gateway_id"])

    async def delete(self, tenant: str, object_id: str) -> bool:
        """See `ResponseStore`."""

        def delete(connection: sa.Connection) -> bool:
            return bool(self._delete(connection, self._own(tenant, object_id)))

        return await self._call(delete)

    async def running(self, *, anywhere: bool = False) -> set[tuple[str, str]]:
        """See `ResponseStore`."""
        names = sa.select(RESPONSES.c.tenant, RESPONSES.c.object_id)
        gateway_id = RESPONSES.c.gateway_id
        of = gateway_id.is_not(None) if anywhere else gateway_id == self._gateway_id
        with _answering():
            rows = await self._database.rows(names.where(of))
        return {(row["tenant"], row["object_id"]) for row in rows}

    async def sweep(self) -> int:
        """See `ResponseStore`."""
        is_expired = RESPONSES.c.expires_unix_seconds <= self._clock()
        is_unreachable = sa.and_(
            RESPONSES.c.tenant.in_(DELETED_TENANTS), RESPONSES.c.gateway_id.is_(None)
        )
        is_over = sa.or_(is_expired, is_unreachable)
        some = sa.select(RESPONSES.c.object_id).where(is_over).limit(_ROWS_AT_ONCE)
        return await self._call(
            lambda connection: self._delete(connection, RESPONSES.c.object_id.in_(some))
        )

    def _expiry(self, *, run_seconds: float = 0.0) -> float:
        return self._clock() + run_seconds + self._keep_seconds

    def _own(self, tenant: str, object_id: str) -> sa.ColumnElement[bool]:
        return sa.and_(RESPONSES.c.object_id == comparable(object_id), RESPONSES.c.tenant == tenant)

    async def _call(self, work: Callable[[sa.Connection], T]) -> T:
        with _answering():
            return await self._database.call(work)

    async def _insert(self, row: _Row) -> int:
        """Write a new row; return the bytes of all."""
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._new.append((row, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="write responses")
        return await written

    async def _write(self) -> None:
        """Write what there is, and what comes meanwhile, until there is no more."""
        while self._new:
            new, self._new = self._new, []
            rows = [row for row, _ in new]
            try:
                try:
                    total = await self._call(partial(self._add, rows))
                except IntegrityError:  # of a batch's line that runs again: see ADR 16
                    total = await self._call(partial(self._put_again, rows))
            except Exception as error:
                for _, written in new:
                    if not written.done():
                        written.set_exception(error)
            else:
                for _, written in new:
                    if not written.done():  # nobody waits for it any more
                        written.set_result(total)
        self._writer = None

    def _add(self, rows: list[_Row], connection: sa.Connection) -> int:
        connection.execute(_NEW, rows)
        grown: Counter[str] = Counter()
        for row in rows:
            grown[row["tenant"]] += row["num_bytes"]
        return self._grow(connection, grown)

    def _put_again(self, rows: list[_Row], connection: sa.Connection) -> int:
        """As `_add`, in place of those of the same tenants and ids; the last of several counts."""
        latest = {row["object_id"]: row for row in rows}
        for row in sorted(latest.values(), key=lambda row: row["tenant"]):
            self._delete(connection, self._own(row["tenant"], row["object_id"]))
        return self._add([*latest.values()], connection)

    def _grow(self, connection: sa.Connection, num_bytes: Mapping[str, int]) -> int:
        """Count so many bytes more of each tenant; return those of all."""
        values = [{"tenant": tenant, "num_bytes": n} for tenant, n in sorted(num_bytes.items())]
        connection.execute(self._grown, values)
        return _total(connection)

    def _delete(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
        """Delete rows, and count their bytes no longer; return how many there were."""
        gone = sa.delete(RESPONSES).where(which)
        rows = connection.execute(gone.returning(RESPONSES.c.tenant, RESPONSES.c.num_bytes)).all()
        shrunk: Counter[str] = Counter()
        for row in rows:
            shrunk[row.tenant] -= row.num_bytes
        if rows:
            self._grow(connection, shrunk)
        return len(rows)

    def _drop_one(self, connection: sa.Connection) -> tuple[str | None, int]:
        """Forget the oldest of the tenant that holds most; return its id, and the bytes of all.

        None: all that is kept runs.
        """
        name, has_ended = RESPONSES.c.object_id, RESPONSES.c.gateway_id.is_(None)
        largest = sa.select(RESPONSE_STORAGE.c.tenant).order_by(
            RESPONSE_STORAGE.c.num_bytes.desc(), RESPONSE_STORAGE.c.tenant
        )
        dropped = None
        for tenant in connection.scalars(largest).all():
            ended = sa.select(name).where(RESPONSES.c.tenant == tenant, has_ended)
            by_age = ended.order_by(RESPONSES.c.expires_unix_seconds, name)
            dropped = connection.scalar(by_age.limit(1))
            if dropped is not None:
                self._delete(connection, name == dropped)
                break
        return dropped, _total(connection)


def _total(connection: sa.Connection) -> int:
    return connection.scalar(_TOTAL) or 0


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Turn what the database raises into an error of the gateway."""
    try:
        yield
    except (*NOT_ANSWERING, sa.exc.ProgrammingError) as error:
        logger.warning("kept responses: %r", error)
        raise UnavailableError(
            f"the database of responses {refusal(error)}; try again",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        ) from error
