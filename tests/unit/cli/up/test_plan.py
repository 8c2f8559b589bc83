from pathlib import Path

import pytest

from pagoda_cli.up.plan import make_plan
from pagoda_runtime.errors import ModelFolderError, SettingsError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return {"PAGODA_HOME": str(tmp_path / "home"), "PAGODA_MODEL": str(model), "PATH": "/bin"}


def test_names_of_every_service_are_checked_together(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as raised:
        make_plan(environ | {"PAGODA_KVSTORE_CPU_BYTE": "1", "PAGODA_HTTP_PORT": "x"})

    assert len(raised.value.problems) == 2
    assert "did you mean PAGODA_KVSTORE_CPU_BYTES?" in str(raised.value)


def test_the_topology_is_checked_together_with_the_rest(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as raised:
        make_plan(environ | {"PAGODA_TOPOLOGY": "disagregated", "PAGODA_HTTP_PORT": "x"})

    assert len(raised.value.problems) == 2
    assert "PAGODA_TOPOLOGY='disagregated': give disaggregated, aggregated" in str(raised.value)


def test_a_missing_model_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ModelFolderError, match="no such folder"):
        make_plan(environ | {"PAGODA_MODEL": "./nowhere"})


def test_two_settings_of_one_port_are_refused(environ: dict[str, str]) -> None:
    same = {"PAGODA_HTTP_PORT": "18001", "PAGODA_ROUTER_HEALTH_PORT": "18001"}
    with pytest.raises(
        SettingsError, match="HTTP_PORT and PAGODA_ROUTER_HEALTH_PORT name the same"
    ):
        make_plan(environ | same)
    make_plan(environ | {"PAGODA_ROUTER_HEALTH_PORT": "0", "PAGODA_DECODE_HEALTH_PORT": "0"})


def test_hosts_have_ports_of_their_own(environ: dict[str, str]) -> None:
    same = {"PAGODA_HTTP_PORT": "18001", "PAGODA_ROUTER_HEALTH_PORT": "18001"}
    make_plan(environ | same | {"PAGODA_ROUTER_HEALTH_HOST": "127.0.0.2"})
    unused = {"PAGODA_PREFILL_HEALTH_PORT": "18002", "PAGODA_DECODE_HEALTH_PORT": "18002"}
    make_plan(environ | unused | {"PAGODA_TOPOLOGY": "aggregated"})


@pytest.mark.parametrize("given", [{"PREFILL": "32"}, {"PREFILL": "32", "DECODE": "16"}])
def test_blocks_that_decode_workers_cannot_use_are_refused(
    environ: dict[str, str], given: dict[str, str]
) -> None:
    sizes = {f"PAGODA_{role}_BLOCK_SIZE": size for role, size in given.items()}
    with pytest.raises(
        SettingsError,
        match=r"PREFILL_BLOCK_SIZE is 32 and PAGODA_DECODE_BLOCK_SIZE 16: .* the same value",
    ):
        make_plan(environ | sizes)
    make_plan(environ | sizes | {"PAGODA_TOPOLOGY": "decode=2"})
    make_plan(environ | sizes | {"PAGODA_DECODE_BLOCK_SIZE": "32"})
