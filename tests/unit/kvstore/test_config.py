import pytest

from pagoda_kvstore.config import KvstoreSettings
from pagoda_runtime.configuration.settings import load_settings
from pagoda_runtime.errors import SettingsError


def test_defaults_need_no_variable() -> None:
    settings = load_settings(KvstoreSettings, {})
    assert (settings.cpu_bytes, settings.nvme_bytes) == (256 << 20, 1 << 30)


def test_nvme_budget_below_two_segments_is_refused() -> None:
    variables = {"PAGODA_KVSTORE_NVME_BYTES": "5000", "PAGODA_KVSTORE_SEGMENT_BYTES": "4096"}
    with pytest.raises(SettingsError, match="at least twice"):
        load_settings(KvstoreSettings, variables)


def test_misspelt_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="PAGODA_KVSTORE_CPU_BYTES"):
        load_settings(KvstoreSettings, {"PAGODA_KVSTORE_CPU_BYTE": "1"})
