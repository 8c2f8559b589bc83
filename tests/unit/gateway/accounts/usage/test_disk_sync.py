"""Files are synced by the kernel or by a thread, and what fails says how."""

import errno
import os
from pathlib import Path

import pytest

from pagoda_gateway.accounts.usage.disk_sync import AioSync, DiskSync, ThreadSync, disk_sync


@pytest.mark.parametrize("kind", [AioSync, ThreadSync])
async def test_a_file_is_synced_as_often_as_is_asked(kind: type[DiskSync], tmp_path: Path) -> None:
    sync = kind()
    with (tmp_path / "file").open("wb", buffering=0) as file:
        for _ in range(20):
            file.write(b"x")
            await sync.sync(file.fileno())
    sync.close()


@pytest.mark.parametrize("kind", [AioSync, ThreadSync])
async def test_what_is_no_open_file_is_an_error(kind: type[DiskSync], tmp_path: Path) -> None:
    sync = kind()
    file = os.open(tmp_path, os.O_RDONLY)
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        await sync.sync(file)
    assert caught.value.errno == errno.EBADF
    sync.close()


async def test_a_thread_syncs_what_the_kernel_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe has no sync; a thread is asked, which says so too, and syncs what comes then."""
    sync = AioSync()
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        await sync.sync(writer)
    assert "synced by a thread" in caplog.text
    assert sync._instead is not None
    with (tmp_path / "file").open("wb") as file:
        await sync.sync(file.fileno())
    for one in (reader, writer):
        os.close(one)
    sync.close()


async def test_a_processor_without_known_calls_has_a_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert isinstance(disk_sync(), ThreadSync)
    assert "synced by a thread" in caplog.text


async def test_an_error_of_the_disk_is_told(tmp_path: Path) -> None:
    """As the kernel says it, in the event that the sync has ended with."""
    sync = AioSync()

    def failed(*_: object) -> int:
        sync._event[16:24] = (-errno.EIO).to_bytes(8, "little", signed=True)
        return 1

    with (tmp_path / "file").open("wb") as file:
        call = sync._system_call
        sync._system_call = lambda number, *rest: (
            failed() if number == sync._get_events else call(number, *rest)
        )
        with pytest.raises(OSError, match="Input/output error"):
            await sync.sync(file.fileno())
    sync.close()
