"""One uploaded file, from its first byte to its row: what came is written before more is read."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import RowMapping
from starlette.requests import Request

from pagoda_gateway.batches.file_store import CHUNK_BYTES, FileStore
from pagoda_gateway.batches.schemas import FileForm
from pagoda_gateway.errors import BodyTooLargeError, GatewayError, InvalidRequestError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.batches.multipart import MAX_FIELD_BYTES, MAX_PARTS, FormParser
from pagoda_gateway.http.body import validated
from pagoda_gateway.http.body_reader import MAX_DISCARDED_BYTES, body_chunks, check_encoding

_HELD_BYTES = 2 * CHUNK_BYTES  # in memory for one upload, whatever its size
_FORM_BYTES = MAX_PARTS * 8 * MAX_FIELD_BYTES  # around the file
_EXPIRES = "expires_after"


async def upload(gateway: Gateway, request: Request, tenant: str) -> RowMapping:
    """Store the file of a form; return its row. Nothing is left of one that is refused.

    Raises:
        GatewayError: says which field or limit.
        starlette.requests.ClientDisconnect: the client left while it sent.
    """
    check_encoding(request)
    form = FormParser(request.headers.get("content-type", ""))
    declared = request.headers.get("content-length", "")
    max_bytes = gateway.files.limits.file_bytes
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes + _FORM_BYTES:
        raise _too_large(max_bytes)
    gateway.bodies.take(_HELD_BYTES)
    try:
        chunks = body_chunks(request, gateway.settings.body_timeout_seconds)
        try:
            return await _store(gateway.files, tenant, form, chunks)
        except GatewayError:
            await _discard(chunks)
            raise
    finally:
        gateway.bodies.free(_HELD_BYTES)


async def _store(
    files: FileStore, tenant: str, form: FormParser, chunks: AsyncIterator[bytes]
) -> RowMapping:
    file_id = await files.begin(tenant, "batch", "")
    try:
        size, num_received, number, held = 0, 0, 0, bytearray()
        max_bytes = files.limits.file_bytes
        async for chunk in chunks:
            num_received += len(chunk)
            for part in form.feed(chunk):
                held += part
                size += len(part)
            if size > max_bytes or num_received > max_bytes + _FORM_BYTES:
                raise _too_large(max_bytes)  # what comes before or behind a form ends too
            _check_early(form)
            while len(held) >= CHUNK_BYTES:
                await files.append(tenant, file_id, number, bytes(held[:CHUNK_BYTES]))
                del held[:CHUNK_BYTES]
                number += 1
        form.end()
        fields = validated(_values(form.fields), FileForm)
        if held:
            await files.append(tenant, file_id, number, bytes(held))
        expires = fields.expires_after
        return await files.finish(
            file_id,
            purpose=fields.purpose,
            filename=form.filename or "",
            keep_seconds=expires.seconds if expires else None,
        )
    except BaseException:
        with contextlib.suppress(Exception):  # then the sweeper does it
            await files.discard(file_id)
        raise


def _check_early(form: FormParser) -> None:
    """Refuse a wrong purpose as soon as it is there, which mostly is before the file."""
    if "purpose" in form.fields:
        validated({"purpose": form.fields["purpose"]}, FileForm)


def _values(fields: dict[str, str]) -> dict[str, Any]:
    """Return a form's fields as JSON would have them: expires_after[seconds] is a number."""
    values: dict[str, Any] = {}
    for name, text in fields.items():
        if name.startswith(f"{_EXPIRES}[") and name.endswith("]"):
            key = name[len(_EXPIRES) + 1 : -1]
            is_number = text.isascii() and text.isdigit() and len(text) < 16
            values.setdefault(_EXPIRES, {})[key] = int(text) if is_number else text
        elif name == _EXPIRES:
            raise InvalidRequestError(
                "'expires_after' is sent as expires_after[anchor] and expires_after[seconds]",
                param=_EXPIRES,
            )
        else:
            values[name] = text
    return values


async def _discard(chunks: AsyncIterator[bytes]) -> None:
    """Read on for a while: who reads no answer before all is sent would get a reset instead."""
    size = 0
    with contextlib.suppress(Exception):
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_DISCARDED_BYTES:
                return


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the file has more than {limit} bytes, the limit; split it", param="file"
    )
