"""Records are on disk before anybody hears of it, whatever the disk does; a torn end is none."""

import asyncio
import errno
import os
import random
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio
from support.seeds import seed_of_tests

from pagoda.rpc.v1.usage_pb2 import UsageOpen, UsageRecord
from pagoda_gateway.accounts.usage import outbox as outbox_module
from pagoda_gateway.accounts.usage import segments, usage_log
from pagoda_gateway.accounts.usage.disk_sync import ThreadSync
from pagoda_gateway.accounts.usage.folder_lock import FolderLock, folders_of
from pagoda_gateway.accounts.usage.outbox import Outbox, OutboxError
from pagoda_gateway.accounts.usage.segments import (
    SegmentReader,
    SegmentWriter,
    segment_numbers,
    segment_path,
)
from pagoda_gateway.accounts.usage.usage_log import UsageLog
from pagoda_gateway.errors import UnavailableError


class States(list[tuple[bool, str]]):
    def __call__(self, is_ready: bool, why: str) -> None:
        self.append((is_ready, why))


@pytest.fixture
def states() -> States:
    return States()


@pytest_asyncio.fixture
async def outbox(tmp_path: Path, states: States) -> AsyncIterator[Outbox]:
    made = await Outbox.open(tmp_path / "root", "gateway-1", max_bytes=1000, on_state=states)
    yield made
    if not made._is_closing.is_set():
        await made.close()


def read_all(folder: Path) -> list[bytes]:
    """What another process finds in a folder that nobody writes any more."""

    def size(number: int) -> int | None:
        path = segment_path(folder, number)
        return path.stat().st_size if path.exists() else None

    reader = SegmentReader(folder, size, lambda: segment_numbers(folder), is_last=True)
    found: list[bytes] = []
    while (batch := reader.next()) is not None:
        found += batch.records
        reader.done(batch)
    return found


async def test_what_was_promised_is_on_disk(outbox: Outbox, tmp_path: Path) -> None:
    records = [f"record {i}".encode() for i in range(100)]
    await asyncio.gather(*(outbox.append(record) for record in records[:50]))
    await asyncio.gather(*(outbox.append(record) for record in records[50:]))

    assert read_all(tmp_path / "root" / "gateway-1") == records


class CountedSync(ThreadSync):
    """Syncs, and says how often; or fails."""

    def __init__(self) -> None:
        self.num_syncs = 0
        self.is_broken = False

    async def sync(self, file: int) -> None:
        self.num_syncs += 1
        if self.is_broken:
            raise OSError(errno.EIO, "broken")
        await super().sync(file)


async def test_those_that_wait_share_a_sync(tmp_path: Path, states: States) -> None:
    lock, sync = FolderLock.make(tmp_path / "box"), CountedSync()
    outbox = Outbox(lock, max_bytes=1000, on_state=states, writer=SegmentWriter(lock.folder, sync))
    outbox.start()
    await asyncio.gather(*[outbox.append(b"x") for _ in range(20)])
    first = outbox.append(b"first")
    while sync.num_syncs < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.gather(first, *[outbox.append(b"behind") for _ in range(20)])

    assert sync.num_syncs == 3
    await outbox.close()


def test_records_come_back_up_to_a_torn_end_wherever_it_is_torn(tmp_path: Path) -> None:
    rng = random.Random(seed_of_tests())
    records = [rng.randbytes(rng.randrange(60)) for _ in range(12)]
    data = b"".join(map(segments.framed, records))
    ends = [len(b"".join(map(segments.framed, records[:i]))) for i in range(len(records) + 1)]
    for cut in range(len(data) + 1):
        found, used = segments.unframed(data[:cut])
        num_whole = max(i for i, end in enumerate(ends) if end <= cut)
        assert (found, used) == (records[:num_whole], ends[num_whole])


def test_a_damaged_record_is_left_out_and_the_next_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    folder.mkdir()
    first, second = segment_path(folder, 1), segment_path(folder, 2)
    first.write_bytes(segments.framed(b"one") + segments.framed(b"two")[:-1] + b"?")
    second.write_bytes(segments.framed(b"three"))

    assert read_all(folder) == [b"one", b"three"]
    assert not first.exists()


async def test_files_that_were_sent_are_deleted(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 64)
    folder = tmp_path / "root" / "gateway-1"
    sent: list[bytes] = []
    for i in range(40):
        await outbox.append(b"%032d" % i)
        while (batch := outbox.next_batch()) is not None:
            sent += batch.records
            outbox.done(batch)
    assert sent == [b"%032d" % i for i in range(40)]
    assert outbox.num_bytes == 0
    assert outbox.is_drained.is_set()
    assert len(list(folder.glob("*.log"))) == 1
    await outbox.close()
    assert not folder.exists()


async def test_more_than_the_budget_is_refused_until_some_are_sent(
    outbox: Outbox, states: States
) -> None:
    await outbox.append(bytes(600))
    await outbox.append(bytes(600))
    with pytest.raises(OutboxError, match=r"1216 bytes .* limit is 1000 \(PAGODA_GATEWAY_OUTBOX"):
        outbox.append(b"open")
    await outbox.append(b"close", is_kept=True)
    assert states[-1][0] is False

    while (batch := outbox.next_batch()) is not None:
        outbox.done(batch)
    await outbox.append(b"open")
    assert states[-1] == (True, "")


class FailingWriter(SegmentWriter):
    """A disk that is full for a while."""

    is_full = True

    async def write(self, records: Iterable[bytes]) -> tuple[int, int]:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return await super().write(records)


async def test_a_full_disk_refuses_what_opens_and_keeps_what_closes(
    tmp_path: Path, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", 0.01)
    lock = FolderLock.make(tmp_path / "box")
    writer = FailingWriter(lock.folder)
    outbox = Outbox(lock, max_bytes=1000, on_state=states, writer=writer)
    outbox.start()
    closing = outbox.append(b"close", is_kept=True)
    with pytest.raises(OutboxError, match="No space left on device"):
        await outbox.append(b"open")
    assert states[-1][0] is False
    with pytest.raises(OutboxError):
        outbox.append(b"another")

    writer.is_full = False
    async with asyncio.timeout(60):
        await closing
    await outbox.append(b"later")
    assert states[-1] == (True, "")
    assert [r for r in read_all(lock.folder) if r] == [b"close", b"later"]
    await outbox.close()


async def test_a_disk_is_found_well_without_anything_to_write(
    tmp_path: Path, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", 0.01)
    lock = FolderLock.make(tmp_path / "box")
    writer = FailingWriter(lock.folder)
    outbox = Outbox(lock, max_bytes=1000, on_state=states, writer=writer)
    outbox.start()
    with pytest.raises(OutboxError):
        await outbox.append(b"open")
    writer.is_full = False
    async with asyncio.timeout(60):
        while not states or not states[-1][0]:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await outbox.append(b"open")
    await outbox.close()


async def test_a_failed_sync_leaves_nothing_that_was_refused(tmp_path: Path) -> None:
    sync = CountedSync()
    writer = SegmentWriter(tmp_path, sync)
    await writer.write([b"good"])
    sync.is_broken = True
    with pytest.raises(OSError, match="broken"):
        await writer.write([b"refused"])
    sync.is_broken = False
    assert (await writer.write([b"next"]))[0] == 2  # whatever that file has in its pages
    writer.close()
    assert read_all(tmp_path) == [b"good", b"next"]


async def test_a_folder_is_taken_only_from_the_dead(outbox: Outbox, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "gateway-1"
    assert folders_of(tmp_path / "root") == [folder]
    assert FolderLock.take(folder) is None

    await outbox.append(b"left")
    outbox._writer._close_file()
    os.close(outbox._lock._file)  # as the kernel does when a process is killed
    lock = FolderLock.take(folder)
    assert lock is not None
    assert FolderLock.take(folder) is None  # one alone
    assert read_all(folder) == [b"left"]
    lock.release(delete=True)
    assert FolderLock.take(folder) is None
    outbox._lock._file = os.open(tmp_path, os.O_RDONLY)


class HangingWriter(SegmentWriter):
    """A disk that takes its time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.goes_on = asyncio.Event()

    async def write(self, records: Iterable[bytes]) -> tuple[int, int]:
        await self.goes_on.wait()
        return await super().write(records)


async def test_what_is_stored_after_its_client_was_refused_is_closed(
    tmp_path: Path, states: States
) -> None:
    lock = FolderLock.make(tmp_path / "box")
    writer = HangingWriter(lock.folder)
    outbox = Outbox(lock, max_bytes=1000, on_state=states, writer=writer)
    outbox.start()
    log = UsageLog(outbox, timeout_seconds=0.01, clock=time.time)
    with pytest.raises(UnavailableError, match=r"longer than 0\.01 s"):
        await log.open(UsageOpen(request_id="r"))
    writer.goes_on.set()
    async with asyncio.timeout(60):
        while len(found := read_copy(lock.folder)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert [UsageRecord.FromString(data).WhichOneof("record") for data in found] == [
        "open",
        "close",
    ]
    assert UsageRecord.FromString(found[1]).close.outcome == "failed"
    await outbox.close()


async def test_the_latest_request_of_a_name_is_known_by_its_tenant(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_log, "MAX_NAMES", 2)
    log = UsageLog(outbox, timeout_seconds=60, clock=time.time)
    for request_id, name in (("1", "x"), ("2", "y"), ("3", "x"), ("4", ""), ("5", "z")):
        await log.open(UsageOpen(request_id=request_id, tenant="t", client_request_id=name))
    assert [log.latest("t", name) for name in ("x", "y", "z", "")] == ["3", None, "5", None]
    assert log.latest("other", "x") is None


def read_copy(folder: Path) -> list[bytes]:
    """What is in a folder now; it stays."""
    paths = sorted(folder.glob("*.log"))
    return [record for path in paths for record in segments.unframed(path.read_bytes())[0]]


async def test_a_record_that_is_too_large_is_refused_at_once(outbox: Outbox) -> None:
    with pytest.raises(OutboxError, match="300000 bytes"):
        outbox.append(bytes(300_000))
    await outbox.append(b"the next one")
