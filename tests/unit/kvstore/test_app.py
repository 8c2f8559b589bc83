"""What a kvstore needs of its machine."""

import pytest

from pagoda_kvstore.app import MIB, check_memory
from pagoda_kvstore.config import KvstoreSettings
from pagoda_runtime.errors import SettingsError

SETTINGS = KvstoreSettings(cpu_bytes=1024 * MIB, write_queue_bytes=64 * MIB)


def test_what_may_be_held_must_fit_the_memory_limit() -> None:
    with pytest.raises(SettingsError) as raised:
        check_memory(SETTINGS, 1215 * MIB)
    assert "limit of this container or control group is 1215 MiB" in str(raised.value)
    assert "PAGODA_KVSTORE_CPU_BYTES has 1024 MiB" in str(raised.value)
    assert "PAGODA_KVSTORE_MEM_LIMIT" in str(raised.value)


def test_a_limit_that_is_scarce_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_memory(SETTINGS, 1216 * MIB)
    assert "may be killed for its memory: the memory limit" in caplog.text


@pytest.mark.parametrize("limit", [1600 * MIB, None])
def test_a_limit_that_suffices_is_not_mentioned(
    caplog: pytest.LogCaptureFixture, limit: int | None
) -> None:
    check_memory(SETTINGS, limit)
    assert caplog.messages == []
