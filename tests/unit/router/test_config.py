import pytest

from pagoda_router.config import RouterSettings
from pagoda_runtime.configuration.settings import load_settings
from pagoda_runtime.errors import SettingsError


def test_defaults_need_no_variable() -> None:
    assert load_settings(RouterSettings, {}).redis_timeout_seconds == 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOAD_FACTOR", "1e308"),
        ("WARM_UP_SECONDS", "315360000"),
        ("PRIOR_STEP_BASE_MS", "1e308"),
        ("PRIOR_STEP_PER_SEQUENCE_MS", "1e308"),
        ("PRIOR_STEP_PER_CONTEXT_TOKEN_MS", "1e308"),
        ("FETCH_BASE_MS", "1e308"),
        ("PRIOR_PREFILL_TOKENS_PER_SECOND", "1e-308"),
        ("PRIOR_TRANSFER_BYTES_PER_SECOND", "1e-308"),
        ("PRIOR_FETCH_BYTES_PER_SECOND", "1e308"),
    ],
)
def test_what_no_decision_can_reckon_with_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"PAGODA_ROUTER_{name}"):
        load_settings(RouterSettings, {f"PAGODA_ROUTER_{name}": value})


def test_waiting_longer_for_redis_than_50_ms_is_refused() -> None:
    with pytest.raises(SettingsError, match="PAGODA_ROUTER_REDIS_TIMEOUT_SECONDS"):
        load_settings(RouterSettings, {"PAGODA_ROUTER_REDIS_TIMEOUT_SECONDS": "0.2"})
