import threading
from pathlib import Path

import pytest

from pagoda_worker.adapters.adapter_list import MAX_BYTES, MAX_LISTED, AdapterList
from pagoda_worker.errors import AdapterRefusedError


@pytest.fixture
def listed(tmp_path: Path) -> AdapterList:
    (tmp_path / "adapters" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "adapters" / "link").symlink_to(tmp_path / "elsewhere")
    return AdapterList(tmp_path / "adapters", "org/model")


def test_what_is_put_on_it_is_there_for_whoever_reads_it(listed: AdapterList) -> None:
    assert (listed.read(), listed.stamp()) == ({}, (0, 0))
    listed.change("one", "/x/one")
    before = listed.stamp()
    other = AdapterList(listed.folder, "org/model")
    other.change("two", "/x/two")
    assert listed.read() == {"one": "/x/one", "two": "/x/two"}
    assert listed.stamp() != before
    other.change("one", "")
    other.change("one", "")
    assert listed.read() == {"two": "/x/two"}
    assert AdapterList(listed.folder, "another").read() == {}


def test_a_change_that_changes_nothing_writes_nothing(listed: AdapterList) -> None:
    listed.change("one", "/x")
    before = listed.stamp()
    listed.change("one", "/x")
    assert listed.stamp() == before


def test_writers_at_the_same_time_lose_nothing(listed: AdapterList) -> None:
    def write(first: int) -> None:
        for i in range(first, first + 20):
            AdapterList(listed.folder, "org/model").change(f"a{i}", "/x")

    threads = [threading.Thread(target=write, args=(20 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed.read() == {f"a{i}": "/x" for i in range(80)}


@pytest.mark.parametrize("path", ["a", "./a", "a/../a"])
def test_paths_below_the_folder(listed: AdapterList, path: str) -> None:
    assert listed.resolve(path) == listed.folder / "a"
    assert listed.resolve(str(listed.folder / path)) == listed.folder / "a"


@pytest.mark.parametrize("path", ["..", "../elsewhere", "/etc", "link", "link/x", ".", "a\0b"])
def test_paths_that_lead_elsewhere_are_refused(listed: AdapterList, path: str) -> None:
    with pytest.raises(AdapterRefusedError, match="lora_path"):
        listed.resolve(path)


def test_a_damaged_list_is_empty_and_the_log_says_so(
    listed: AdapterList, caplog: pytest.LogCaptureFixture
) -> None:
    listed.change("one", "/x")
    (path,) = listed.folder.glob(".loaded-*.json")
    path.write_text("[1, 2")
    assert listed.read() == {}
    assert "cannot be read" in caplog.text


def test_it_is_bounded(listed: AdapterList) -> None:
    listed.change("one", "/x")
    (path,) = listed.folder.glob(".loaded-*.json")
    path.write_text("{" + ",".join(f'"a{i}": "/x"' for i in range(MAX_LISTED)) + "}")
    with pytest.raises(AdapterRefusedError, match=str(MAX_LISTED)):
        listed.change("more", "/x")


def test_its_bytes_are_bounded_as_they_are_when_it_is_read(listed: AdapterList) -> None:
    listed.change("one", "/x")
    with pytest.raises(AdapterRefusedError, match=f"the limit is {MAX_BYTES}"):
        listed.change("more", "/" + "x" * MAX_BYTES)
    assert listed.read() == {"one": "/x"}


def test_a_damaged_list_is_not_written_over(listed: AdapterList) -> None:
    listed.change("one", "/x")
    (path,) = listed.folder.glob(".loaded-*.json")
    path.write_text("[1, 2")
    with pytest.raises(AdapterRefusedError, match="mend it, or remove it"):
        listed.change("two", "/y")
    assert path.read_text() == "[1, 2"
