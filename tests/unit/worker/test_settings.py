import subprocess
import sys

import pytest

from pagoda_decode.config import DecodeSettings
from pagoda_prefill.config import PrefillSettings
from pagoda_runtime.configuration.settings import load_settings
from pagoda_runtime.errors import SettingsError


def test_prefixes_are_the_services() -> None:
    environ = {"PAGODA_DECODE_NUM_BLOCKS": "7", "PAGODA_PREFILL_KV_TRANSFER": "grpc"}
    assert load_settings(DecodeSettings, environ).num_blocks == 7
    assert load_settings(PrefillSettings, environ).kv_transfer == "grpc"


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


def test_what_a_device_decides_is_left_open() -> None:
    settings = DecodeSettings()

    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (0, 0)
    assert (settings.num_layer_groups, settings.graph_batch_sizes) == (0, ())
    assert not settings.enforce_eager


def test_graph_batch_sizes_are_a_json_list() -> None:
    environ = {"PAGODA_DECODE_GRAPH_BATCH_SIZES": "[1, 2, 64]"}

    assert load_settings(DecodeSettings, environ).graph_batch_sizes == (1, 2, 64)


@pytest.mark.parametrize("sizes", ["[0, 1]", "[2, 1]", "[1, 1]", "1,2", "[-4]"])
def test_graph_batch_sizes_that_cannot_be_are_refused(sizes: str) -> None:
    with pytest.raises(SettingsError, match="PAGODA_DECODE_GRAPH_BATCH_SIZES"):
        load_settings(DecodeSettings, {"PAGODA_DECODE_GRAPH_BATCH_SIZES": sizes})


@pytest.mark.parametrize("value", ["nonsense", "http://foo:80"])
def test_an_endpoint_of_the_kvstore_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=r"KVSTORE_ENDPOINT='.*': give host:port"):
        load_settings(DecodeSettings, {"PAGODA_DECODE_KVSTORE_ENDPOINT": value})


@pytest.mark.parametrize("name", ["MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS", "NUM_BLOCKS"])
def test_sizes_that_no_machine_has_room_for_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"PAGODA_DECODE_{name}='1000000000000': .* less than"):
        load_settings(DecodeSettings, {f"PAGODA_DECODE_{name}": "1000000000000"})


@pytest.mark.parametrize("module", ["pagoda_decode.config", "pagoda_prefill.config"])
def test_settings_import_no_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    assert (
        subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0
    )
