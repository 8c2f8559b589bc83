from pathlib import Path

import pytest

from pagoda_runtime.configuration.model_folder import (
    find_demo_model,
    find_model,
    resolve_model_folder,
)
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import ModelFolderError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")

    assert resolve_model_folder(CommonSettings(model=str(folder))) == folder


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        resolve_model_folder(CommonSettings(model=str(tmp_path)))


def test_a_gguf_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "Some Model.Q8_0.gguf"
    path.write_bytes(b"GGUF")
    settings = CommonSettings(model=str(path))
    assert resolve_model_folder(settings) == path
    assert settings.served_model_name == "Some Model.Q8_0"
    assert resolve_model_folder(CommonSettings(model=str(tmp_path))) == path


def test_a_folder_with_several_gguf_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelFolderError, match=r"2 GGUF files: name one of them \(a.gguf, b.gguf"):
        resolve_model_folder(CommonSettings(model=str(tmp_path)))


def test_a_folder_with_both_is_a_folder(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model_folder(CommonSettings(model=str(folder))) == folder


def test_a_missing_gguf_file_is_no_name_of_the_hub() -> None:
    with pytest.raises(ModelFolderError, match="no such folder or file"):
        resolve_model_folder(CommonSettings(model="model.gguf"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="no such folder"):
        resolve_model_folder(CommonSettings(model=str(tmp_path / "nothing")))


def test_a_hub_name_is_found_in_the_cache(hub: Path) -> None:
    folder = make_model(hub / "models--owner--tiny" / "snapshots" / "abc")
    (hub / "models--owner--tiny" / "refs").mkdir()
    (hub / "models--owner--tiny" / "refs" / "main").write_text("abc\n")

    assert resolve_model_folder(CommonSettings(model="owner/tiny")) == folder
    assert resolve_model_folder(CommonSettings(model="owner/tiny@abc")) == folder


def test_a_hub_name_that_is_not_cached_says_how_to_fetch_it(hub: Path) -> None:
    with pytest.raises(ModelFolderError, match="hf download owner/tiny"):
        resolve_model_folder(CommonSettings(model="owner/tiny"))


def test_the_demo_model_is_found_above(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "demo" / "model")
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)

    assert find_demo_model(inside) == folder


def test_the_setting_that_names_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"^PAGODA_OTHER='/.*nothing': .*no such folder"):
        find_model(str(tmp_path / "nothing"), "PAGODA_OTHER")


def test_a_folder_that_cannot_be_looked_at_is_named() -> None:
    name = "/" + "x" * 300  # too long for every file system, for root too
    with pytest.raises(ModelFolderError, match=r"MODEL='/x+': /x+ cannot be read: File name"):
        find_model(name, "PAGODA_MODEL")


def test_a_folder_below_nobodys_home_is_refused() -> None:
    with pytest.raises(ModelFolderError, match=r"PAGODA_MODEL='~nobody-here/m': .* without ~"):
        find_model("~nobody-here/m", "PAGODA_MODEL")
