import subprocess
import sys

import pytest

from pagoda.decode.config import DecodeSettings
from pagoda.prefill.config import PrefillSettings
from pagoda.runtime.errors import SettingsError
from pagoda.runtime.settings import load_settings


def test_prefixes_are_the_services() -> None:
    environ = {"PAGODA_DECODE_NUM_BLOCKS": "7", "PAGODA_PREFILL_SHARED_MEMORY_BYTES": "0"}
    assert load_settings(DecodeSettings, environ).num_blocks == 7
    assert load_settings(PrefillSettings, environ).shared_memory_bytes == 0


def test_advertised_host_defaults_to_the_listeners() -> None:
    assert DecodeSettings(grpc_host="10.0.0.5").advertised_host == "10.0.0.5"
    assert DecodeSettings(grpc_host="0.0.0.0", advertise_host="d1").advertised_host == "d1"


def test_a_wildcard_listener_advertises_an_address_of_its_own() -> None:
    assert DecodeSettings(grpc_host="0.0.0.0").advertised_host not in ("0.0.0.0", "")


def test_misspelt_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="PAGODA_DECODE_NUM_BLOCKS"):
        load_settings(DecodeSettings, {"PAGODA_DECODE_NUM_BLOCK": "7"})


def test_worker_id_is_one_subject_token() -> None:
    with pytest.raises(SettingsError, match="PAGODA_DECODE_WORKER_ID"):
        load_settings(DecodeSettings, {"PAGODA_DECODE_WORKER_ID": "a.b"})


@pytest.mark.parametrize("module", ["pagoda.decode.config", "pagoda.prefill.config"])
def test_settings_import_no_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    assert (
        subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0
    )
