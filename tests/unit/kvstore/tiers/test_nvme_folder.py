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
