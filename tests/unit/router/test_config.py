import pytest

from pagoda_router.config import RouterSettings
from pagoda_runtime.configuration.settings import load_settings
from pagoda_runtime.errors import SettingsError


def test_defaults_need_no_variable() -> None:
    assert load_settings(RouterSettings, {}).redis_timeout_seconds == 0.05


def test_waiting_longer_for_redis_than_50_ms_is_refused() -> None:
    with pytest.raises(SettingsError, match="PAGODA_ROUTER_REDIS_TIMEOUT_SECONDS"):
        load_settings(RouterSettings, {"PAGODA_ROUTER_REDIS_TIMEOUT_SECONDS": "0.2"})
