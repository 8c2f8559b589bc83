"""Batches of messages by the ids that Anthropic's clients know.

Knows rows and files, and no HTTP. What is here of a batch is the same as of OpenAI's.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import orjson
from sqlalchemy import RowMapping

from pagoda_gateway.batches.batch_store import WINDOW_SECONDS, BatchStore
from pagoda_gateway.batches.file_store import CHUNK_BYTES, UNFINISHED, FileStore
from pagoda_gateway.batches.ids import stored_id
from pagoda_gateway.batches.schemas import MESSAGES
from pagoda_gateway.batches.validation import (
    MAX_ERRORS,
    RequestError,
    check_body,
    check_custom_id,
)
from pagoda_gateway.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    NotFoundError,
    joined,
    shorten,
)
from pagoda_gateway.large_bodies import LargeBodies
from pagoda_gateway.message_batches.objects import result_lines
from pagoda_gateway.message_batches.schemas import MessageBatchBody

FILENAME = "message_batch.jsonl"


class MessageBatches:
    """Every tenant's; one that is not the tenant's own does not exist for it."""

    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        large: LargeBodies,
        *,
        max_lines: int,
        max_line_bytes: int,
    ) -> None:
        """Keep batches in the stores; the limits are those of a batch and of each line."""
        self._files = files
        self._batches = batches
        self._large = large
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes

    async def create(
        self,
        tenant: str,
        api_key_id: str,
        body: MessageBatchBody,
        check_model: Callable[[str], object],
    ) -> RowMapping:
        """Take a batch, if all its requests are good; return its row.

        Args:
            tenant: whose it is.
            api_key_id: as whom it is run.
            body: the requests.
            check_model: raises InvalidRequestError for a model that is not the key's.

        Raises:
            GatewayError: says where what is wrong, or which limit; nothing is kept then.
        """
        data, model = await self._large.apart(tenant, partial(self._lines, body, check_model))
        file_id = await self._write(tenant, data)
        try:
            return await self._batches.create_of_messages(
                tenant,
                api_key_id,
                input_file_id=file_id,
                num_lines=len(body.requests),
                model=model,
            )
        except BaseException:
            # A day ends it otherwise. One whose batch was made after all is kept.
            with contextlib.suppress(Exception):
                await self._files.delete(tenant, file_id)
            raise

    async def get(self, tenant: str, message_batch_id: str) -> RowMapping:
        """Return a batch's row.

        Raises:
            NotFoundError: this tenant has no such batch.
        """
        try:
            batch_id = stored_id(message_batch_id)
            return await self._batches.get(tenant, batch_id, of_messages=True)
        except NotFoundError:
            raise NotFoundError(f"no message batch {shorten(message_batch_id)}") from None

    async def page(
        self, tenant: str, *, after: str | None, before: str | None, limit: int
    ) -> tuple[list[RowMapping], bool]:
        """Return up to `limit` rows, the newest first, and whether there are more.

        Args:
            tenant: whose.
            after: the last id of the page before, whose batches are newer.
            before: the first id of the page behind, whose batches are older.
            limit: of the page.
        """
        rows = await self._batches.list_batches(
            tenant,
            after=after and stored_id(after),
            before=before and stored_id(before),
            limit=limit,
            of_messages=True,
        )
        page = rows[:limit]
        return page[::-1] if before else page, len(rows) > limit

    async def cancel(self, tenant: str, message_batch_id: str) -> RowMapping:
        """Ask for a batch's end; return its row.

        Raises:
            NotFoundError: see `get`.
            InvalidRequestError: it has ended.
        """
        row = await self.get(tenant, message_batch_id)
        if row["status"] not in UNFINISHED:
            raise InvalidRequestError(
                f"{message_batch_id} has ended; only a batch that is in_progress can be canceled"
            )
        return await self._batches.cancel(tenant, row["batch_id"], of_messages=True)

    async def delete(self, tenant: str, message_batch_id: str) -> None:
        """Delete a batch and all that is kept of it.

        Raises:
            NotFoundError: see `get`.
            InvalidRequestError: it has not ended, or its requests are another batch's, too.
        """
        await self._batches.delete(await self._ended(tenant, message_batch_id))

    async def results(self, tenant: str, message_batch_id: str) -> AsyncIterator[bytes]:
        """Return what yields a batch's results, in the order of its requests.

        Raises:
            NotFoundError: see `get`; or they have expired or were deleted, maybe meanwhile.
            InvalidRequestError: it has not ended.
        """
        row = await self._ended(tenant, message_batch_id)
        ids = [row[name] for name in ("output_file_id", "error_file_id") if row[name]]
        try:
            files = [await self._files.get(tenant, file_id) for file_id in ids]
        except NotFoundError:
            raise NotFoundError(
                f"the results of {message_batch_id} are no longer here: they have expired, or "
                "their files were deleted"
            ) from None
        return self._results(tenant, files)

    async def _results(self, tenant: str, files: list[RowMapping]) -> AsyncIterator[bytes]:
        async for data in self._files.content(*files):
            yield await self._large.read(tenant, len(data), partial(result_lines, data))

    async def _ended(self, tenant: str, message_batch_id: str) -> RowMapping:
        row = await self.get(tenant, message_batch_id)
        if row["status"] in UNFINISHED:
            raise InvalidRequestError(
                f"{message_batch_id} has not ended; wait until its processing_status is 'ended', "
                "or cancel it"
            )
        return row

    def _lines(
        self, body: MessageBatchBody, check_model: Callable[[str], object]
    ) -> tuple[bytes, str]:
        """Return the requests as an input file, and the model of the first one. Takes time.

        Raises:
            InvalidRequestError: names those that are wrong, up to MAX_ERRORS.
            BodyTooLargeError: the file is.
        """
        if len(body.requests) > self._max_lines:
            raise InvalidRequestError(
                f"'requests' has {len(body.requests)} requests; the limit of one batch is "
                f"{self._max_lines}; split it",
                param="requests",
            )
        lines: list[bytes] = []
        models: list[str] = []
        problems: list[InvalidRequestError] = []
        seen: dict[bytes, str] = {}
        for index, request in enumerate(body.requests):
            place = f"requests[{index}]"
            try:
                check_custom_id(request.custom_id, place, seen)
                models.append(check_body(request.params, "params", check_model))
                lines.append(self._line(request.custom_id, request.params))
            except RequestError as error:
                where = f"{place}.{error.param}"
                problems.append(InvalidRequestError(f"'{where}': {error}", param=where))
                if len(problems) == MAX_ERRORS:
                    break
        if problems:
            raise joined(problems)
        data, limit = b"".join(lines), self._files.limits.file_bytes
        if len(data) > limit:
            raise BodyTooLargeError(
                f"the requests have {len(data)} bytes; a file of {limit} is the limit; split them",
                param="requests",
            )
        return data, models[0]

    def _line(self, custom_id: str, params: object) -> bytes:
        line = {"custom_id": custom_id, "method": "POST", "url": MESSAGES, "body": params}
        data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        if len(data) > self._max_line_bytes:
            raise RequestError(
                "line_too_long",
                f"the request has {len(data)} bytes; the limit is {self._max_line_bytes}",
                "params",
            )
        return data

    async def _write(self, tenant: str, data: bytes) -> str:
        """Write an input file, which is kept for a day and until its batch ends; return its id."""
        file_id = await self._files.begin(tenant, "batch", FILENAME)
        try:
            for number, start in enumerate(range(0, len(data), CHUNK_BYTES)):
                chunk = data[start : start + CHUNK_BYTES]
                await self._files.append(tenant, file_id, number, chunk)
            await self._files.finish(
                file_id, purpose="batch", filename=FILENAME, keep_seconds=WINDOW_SECONDS
            )
        except BaseException:
            with contextlib.suppress(Exception):  # then the sweeper does it
                await self._files.discard(file_id)
            raise
        return file_id
