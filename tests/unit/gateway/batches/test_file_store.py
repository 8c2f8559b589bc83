"""Files are whole, their tenant's own, counted to the byte, and gone when they are deleted."""

import random

import pytest
import sqlalchemy as sa
from support.batch_files import LIMITS, Clock
from support.seeds import seed_of_tests
from support.tenants import add_deleted_tenant

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import CHUNK_BYTES, UPLOAD_SECONDS, FileStore
from pagoda_gateway.batches.schemas import BatchBody
from pagoda_gateway.batches.tables import FILE_CHUNKS, FILES, STORAGE
from pagoda_gateway.errors import NotFoundError, StorageFullError, UnavailableError


async def store(
    files: FileStore, data: bytes, tenant: str = "t", keep_seconds: float | None = None
) -> str:
    file_id = await files.begin(tenant, "batch", "in.jsonl")
    for number, start in enumerate(range(0, len(data), CHUNK_BYTES)):
        await files.append(tenant, file_id, number, data[start : start + CHUNK_BYTES])
    await files.finish(file_id, purpose="batch", filename="in.jsonl", keep_seconds=keep_seconds)
    return file_id


async def read(files: FileStore, file_id: str, tenant: str = "t") -> bytes:
    file = await files.get(tenant, file_id)
    return b"".join([data async for data in files.content(file)])


async def check_invariants(database: Database) -> None:
    """Recount what each tenant keeps; no chunk is without its file."""
    kept = await database.rows(
        sa.select(FILES.c.tenant, sa.func.sum(FILES.c.num_bytes).label("size")).group_by(
            FILES.c.tenant
        )
    )
    counted = await database.rows(sa.select(STORAGE).where(STORAGE.c.num_bytes > 0))
    assert {row["tenant"]: row["num_bytes"] for row in counted} == {
        row["tenant"]: row["size"] for row in kept if row["size"]
    }
    orphans = sa.select(FILE_CHUNKS.c.file_id).where(
        FILE_CHUNKS.c.file_id.not_in(sa.select(FILES.c.file_id))
    )
    assert await database.rows(orphans) == []


async def test_random_work_keeps_the_count(database: Database, files: FileStore) -> None:
    rng = random.Random(seed_of_tests())
    kept: dict[str, tuple[str, bytes]] = {}
    for _ in range(40):
        tenant = rng.choice("ab")
        if kept and rng.random() < 0.4:
            file_id = rng.choice(list(kept))
            await files.delete(kept.pop(file_id)[0], file_id)
        else:
            data = rng.randbytes(rng.choice([0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 900_000]))
            try:
                kept[await store(files, data, tenant)] = (tenant, data)
            except (StorageFullError, UnavailableError):
                await files.sweep()  # it is no longer written, but young
        await check_invariants(database)
    for file_id, (tenant, data) in kept.items():
        assert await read(files, file_id, tenant) == data


async def test_limits_of_one_tenant_and_of_all(files: FileStore) -> None:
    half = bytes(LIMITS.tenant_bytes // 2)
    for _ in range(2):
        await store(files, half, "a")
    with pytest.raises(StorageFullError, match=str(LIMITS.tenant_bytes)):
        await store(files, b"x", "a")
    await store(files, half[:-1], "b")
    with pytest.raises(UnavailableError, match=str(LIMITS.total_bytes)):
        await store(files, b"xy", "c")


async def test_nobody_sees_a_file_that_is_not_finished(files: FileStore) -> None:
    file_id = await files.begin("t", "batch", "in.jsonl")
    await files.append("t", file_id, 0, b"abc")
    with pytest.raises(NotFoundError):
        await files.get("t", file_id)
    await files.discard(file_id)
    with pytest.raises(NotFoundError):
        await files.append("t", file_id, 1, b"def")


async def test_another_tenants_file_does_not_exist(files: FileStore) -> None:
    file_id = await store(files, b"abc", "a")
    with pytest.raises(NotFoundError):
        await files.get("b", file_id)
    with pytest.raises(NotFoundError):
        await files.delete("b", file_id)
    assert await files.list_files("b", purpose=None, after=None, limit=9, order="asc") == []
    assert await read(files, file_id, "a") == b"abc"


async def test_a_reader_hears_that_the_file_was_deleted(files: FileStore) -> None:
    file_id = await store(files, bytes(3 * CHUNK_BYTES))
    content = files.content(await files.get("t", file_id))
    assert len(await anext(content)) == CHUNK_BYTES
    await files.delete("t", file_id)
    with pytest.raises(NotFoundError):
        await anext(content)


async def test_expired_files_and_abandoned_uploads_are_swept(
    database: Database, files: FileStore, clock: Clock
) -> None:
    brief = await store(files, bytes(300_000), keep_seconds=3600)
    long = await store(files, b"long")
    abandoned = await files.begin("t", "batch", "in.jsonl")
    await files.append("t", abandoned, 0, b"begun")
    assert await files.sweep() == 0
    clock.now += max(3600, UPLOAD_SECONDS) + 1
    with pytest.raises(NotFoundError):
        await files.get("t", brief)
    assert await files.sweep() == 2
    await check_invariants(database)
    assert await read(files, long) == b"long"
    clock.now += LIMITS.keep_seconds
    assert await files.sweep() == 1
    assert await database.rows(sa.select(FILE_CHUNKS)) == []


async def test_a_deleted_tenant_keeps_no_files_but_those_at_work(
    database: Database, files: FileStore, batches: BatchStore
) -> None:
    idle, busy = await store(files, b"idle"), await store(files, b"busy")
    body = BatchBody(input_file_id=busy, endpoint="/v1/completions", completion_window="24h")
    batch_id = (await batches.create("t", "key-1", body))["batch_id"]
    await add_deleted_tenant(database, "t")
    assert [await files.sweep(), await files.sweep()] == [1, 0]
    with pytest.raises(NotFoundError):
        await files.get("t", idle)
    await batches.forget()
    assert await batches.claim("a") is not None
    await batches.fail(batch_id, "a", [])
    assert await files.sweep() == 1
    await batches.forget()
    with pytest.raises(NotFoundError):
        await batches.get("t", batch_id)
    assert await database.rows(sa.select(FILE_CHUNKS)) == []


async def test_pages_go_on_where_they_stopped(files: FileStore) -> None:
    made = [await store(files, b"x") for _ in range(5)]
    for order, expected in (("asc", sorted(made)), ("desc", sorted(made, reverse=True))):
        seen: list[str] = []
        while True:
            after = seen[-1] if seen else None
            rows = await files.list_files("t", purpose="batch", after=after, limit=2, order=order)  # type: ignore[arg-type]
            seen += [row["file_id"] for row in rows[:2]]
            if len(rows) <= 2:
                break
        assert seen == expected
    assert await files.list_files("t", purpose="x", after=None, limit=2, order="asc") == []


async def test_an_id_with_a_nul_is_of_no_file(files: FileStore) -> None:
    with pytest.raises(NotFoundError):
        await files.get("t", "file-\0")
    listing = {"purpose": None, "limit": 1, "order": "desc"}
    assert await files.list_files("t", after="\0", **listing) == []
