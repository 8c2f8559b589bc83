import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pagoda_cli.up.disk import plan_disk
from pagoda_cli.up.errors import DiskFullError
from pagoda_kvstore.config import KvstoreSettings
from pagoda_runtime.configuration.settings import load_settings

GIB = 2**30


def set_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free_bytes))


def test_a_large_disk_leaves_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(monkeypatch, 100 * GIB)

    assert plan_disk(tmp_path, {}).variables == {
        "PAGODA_GATEWAY_USAGE_LOG_BYTES": str(4 * GIB),
        "PAGODA_GATEWAY_OUTBOX_BYTES": str(256 << 20),
        "PAGODA_GATEWAY_TOTAL_FILE_BYTES": str(4 * GIB),
        "PAGODA_GATEWAY_RESPONSE_STORE_BYTES": str(GIB),
        "PAGODA_KVSTORE_NVME_BYTES": str(GIB),
        "PAGODA_KVSTORE_SEGMENT_BYTES": str(64 << 20),
    }


@pytest.mark.parametrize("free_bytes", [128 << 20, 10**9, 2 * GIB])
def test_a_small_disk_is_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    set_free(monkeypatch, free_bytes)
    (tmp_path / "ledger.sqlite").write_bytes(bytes(8000))
    plan = plan_disk(tmp_path, {})

    assert plan.variables["PAGODA_GATEWAY_USAGE_LOG_BYTES"] == str(free_bytes // 4)
    assert plan.variables["PAGODA_GATEWAY_OUTBOX_BYTES"] == str(min(256 << 20, free_bytes // 16))
    assert plan.variables["PAGODA_GATEWAY_TOTAL_FILE_BYTES"] == str((free_bytes + 8000) // 8)
    assert plan.variables["PAGODA_GATEWAY_RESPONSE_STORE_BYTES"] == str((free_bytes + 8000) // 16)
    assert load_settings(KvstoreSettings, plan.variables).nvme_bytes == free_bytes // 4
    assert f"{free_bytes // 4 / 2**20:.0f} MiB of them for usage records" in plan.explanation


def test_what_the_user_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(monkeypatch, GIB)
    plan = plan_disk(tmp_path, {"PAGODA_KVSTORE_NVME_BYTES": "0"})

    assert list(plan.variables) == [
        "PAGODA_GATEWAY_USAGE_LOG_BYTES",
        "PAGODA_GATEWAY_OUTBOX_BYTES",
        "PAGODA_GATEWAY_TOTAL_FILE_BYTES",
        "PAGODA_GATEWAY_RESPONSE_STORE_BYTES",
    ]


def test_a_full_disk_is_refused_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free(monkeypatch, 5 << 20)

    with pytest.raises(DiskFullError, match=r"only 5 MiB are free .* at least 128 MiB"):
        plan_disk(tmp_path, {})
