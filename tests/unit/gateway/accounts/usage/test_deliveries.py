"""What clients had, in a file that a killed process leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagoda_gateway.accounts.usage import deliveries as module
from pagoda_gateway.accounts.usage.deliveries import Deliveries, deliveries_in, left_in

KILLED = """
import os, signal, sys
from pathlib import Path
from pagoda_gateway.accounts.usage.deliveries import Deliveries

deliveries = Deliveries(Path(sys.argv[1]))
for number in range(3000):
    delivery = deliveries.begin(f"request-{number}", number % 4)
    delivery.note(number)
    if number % 3 == 0:
        delivery.end()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def deliveries(tmp_path: Path) -> Deliveries:
    return Deliveries(tmp_path)


def file_in(folder: Path) -> Path:
    (file,) = folder.glob("delivered-*")
    return file


def test_the_latest_word_of_each_running_sequence_is_found(
    deliveries: Deliveries, tmp_path: Path
) -> None:
    first, second, _ = (deliveries.begin("r", index) for index in range(3))
    assert first
    assert second
    for num_tokens in (1, 2, 70_000):
        first.note(num_tokens)
    second.note(5)
    second.end()
    assert sorted(left_in(tmp_path)) == [("r", 0, 70_000), ("r", 2, 0)]
    again = deliveries.begin("s", 9)
    assert again
    assert sorted(left_in(tmp_path)) == [("r", 0, 70_000), ("r", 2, 0), ("s", 9, 0)]


def test_a_killed_process_leaves_all_of_it(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -9
    wanted = {(f"request-{n}", n % 4, n) for n in range(3000) if n % 3}
    assert set(left_in(tmp_path)) == wanted


def test_slots_are_used_again_before_there_are_more(deliveries: Deliveries, tmp_path: Path) -> None:
    num_slots = deliveries.num_slots
    for number in range(5000):
        delivery = deliveries.begin(f"r{number}", 0)
        assert delivery
        delivery.end()
    assert deliveries.num_slots == num_slots
    assert list(left_in(tmp_path)) == []


def test_what_no_slot_can_hold_has_none(deliveries: Deliveries, tmp_path: Path) -> None:
    assert deliveries.begin("r" * 59, 0) is None
    assert deliveries.begin("r", 2**16) is None
    assert deliveries.begin("r" * 58, 2**16 - 1)
    assert list(left_in(tmp_path)) == [("r" * 58, 2**16 - 1, 0)]


def test_without_room_there_is_none_and_nobody_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    deliveries = deliveries_in(tmp_path)
    assert deliveries
    monkeypatch.setattr(os, "posix_fallocate", full)
    begun = [deliveries.begin(str(number), 0) for number in range(1100)]
    assert all(begun[:1024])
    assert not any(begun[1024:])
    assert len(list(left_in(tmp_path))) == 1024
    (tmp_path / "more").mkdir()
    assert deliveries_in(tmp_path / "more") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_what_another_boot_left_is_not_read(
    deliveries: Deliveries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written back some time before the power went."""
    deliveries.begin("r", 0)
    monkeypatch.setattr(module, "host_id", lambda: "0123456789abcdef")
    assert list(left_in(tmp_path)) == []


def test_what_is_damaged_is_left_out(
    deliveries: Deliveries, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be refused by the database, and all records with it, again and again."""
    for name in ("a", "b", "c", "d", "good"):
        deliveries.begin(name, 0)
    file = file_in(tmp_path)
    data = bytearray(file.read_bytes())
    data[1:4] = b"\0x\0"  # within a name
    data[64:128] = b"\xff" * 64
    data[128 + 60 : 128 + 64] = (2**31).to_bytes(4, "little")
    data[192] = 0  # given back, or nearly
    file.write_bytes(data + b"torn")
    assert list(left_in(tmp_path)) == [("good", 0, 0)]
    assert [record.message.split()[0] for record in caplog.records] == ["3"]


def test_no_file_is_nothing(tmp_path: Path) -> None:
    assert list(left_in(tmp_path)) == []
