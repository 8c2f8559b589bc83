import errno
import os
import shutil
from pathlib import Path

import pytest

from pagoda_kvstore.errors import NvmeFolderInUseError
from pagoda_kvstore.tiers.nvme_folder import first_free_folder


def test_replicas_take_folders_of_their_own(tmp_path: Path) -> None:
    replicas = [first_free_folder(tmp_path / "segments", 3) for _ in range(3)]

    assert [replica.path.name for replica in replicas] == ["segments", "segments-2", "segments-3"]
    with pytest.raises(NvmeFolderInUseError, match=r"segments-3.*PAGODA_KVSTORE_NVME_FOLDERS"):
        first_free_folder(tmp_path / "segments", 3)
    for replica in replicas:
        replica.close()


def test_a_replica_that_comes_back_takes_the_folder_that_was_left(tmp_path: Path) -> None:
    first, second = (first_free_folder(tmp_path / "segments", 2) for _ in range(2))
    name = first.store_id(lambda: "kvstore-1")
    first.close()

    back = first_free_folder(tmp_path / "segments", 2)
    assert back.path == first.path
    assert back.store_id(lambda: "kvstore-9") == name
    back.close()
    second.close()


def test_one_folder_is_shared_with_nobody(tmp_path: Path) -> None:
    held = first_free_folder(tmp_path, 1)

    with pytest.raises(NvmeFolderInUseError):
        first_free_folder(tmp_path, 1)
    held.close()


@pytest.mark.parametrize(
    "content",
    [
        b"kvstore-\xff3v9w2x8\n",
        b"kvstore.k3v9w2x8\n",
        b"kvstore k3v9w2x8\n",
        b"kvstore-K3v9w2x8\n",
        b"-\n",
        b"",
        b"a" * 65,
        bytes(1 << 20),
    ],
)
def test_a_damaged_id_is_replaced_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "store_id").write_bytes(content)
    folder = first_free_folder(tmp_path, 1)

    assert folder.store_id(lambda: "kvstore-1") == "kvstore-1"

    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path / 'store_id'} is damaged")
    assert len(message) < 500
    assert folder.store_id(lambda: "kvstore-2") == "kvstore-1"
    folder.close()


def test_an_id_that_cannot_be_read_does_not_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "store_id").mkdir()
    folder = first_free_folder(tmp_path, 1)

    assert folder.store_id(lambda: "kvstore-1") == "kvstore-1"
    folder.close()


def test_an_id_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = first_free_folder(tmp_path, 1)

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    folder.store_id(lambda: "kvstore-1")

    assert not (tmp_path / "store_id").exists()
    folder.close()


def test_a_folder_that_was_removed_is_taken_again_with_its_id(tmp_path: Path) -> None:
    folder = first_free_folder(tmp_path / "segments", 1)
    folder.store_id(lambda: "kvstore-1")
    assert folder.is_held()
    shutil.rmtree(folder.path)
    assert not folder.is_held()

    folder.take_again()

    assert folder.is_held()
    with pytest.raises(NvmeFolderInUseError):
        first_free_folder(tmp_path / "segments", 1)
    assert folder.store_id(lambda: "kvstore-2") == "kvstore-1"
    folder.close()


def test_a_folder_that_another_process_made_again_is_not_taken(tmp_path: Path) -> None:
    folder = first_free_folder(tmp_path / "segments", 1)
    shutil.rmtree(folder.path)
    other = first_free_folder(tmp_path / "segments", 1)

    assert not folder.is_held()
    with pytest.raises(NvmeFolderInUseError):
        folder.take_again()
    folder.close()
    other.close()
