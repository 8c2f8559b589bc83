import itertools
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from pagoda_kernels.native.library import NativeLibrary
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.seats import BUSY_NANOSECONDS, NUM_SEATS, SEAT_BYTES, NoSeatError, Seat

CLOCK = time.CLOCK_MONOTONIC

SIT_DOWN = """
import sys, time
from pathlib import Path
from pagoda_kernels.native.seats import Seat
seat = Seat(Path(sys.argv[1]))
print(seat.index, flush=True)
time.sleep(100)
"""


def index_of(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_killed_process_leaves_its_seat(tmp_path: Path) -> None:
    table = tmp_path / "run" / "processors"
    command = [sys.executable, "-c", SIT_DOWN, str(table)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        taken = [index_of(other) for other in others]
        assert set(taken) == {0, 1}
        assert Seat(table).index == 2
        others[1].kill()
        others[1].wait()
        others.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert index_of(others[2]) == taken[1]
    finally:
        for other in others:
            other.kill()
            other.wait()
            assert other.stdout is not None
            other.stdout.close()


def test_no_seat_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_taken(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr("pagoda_kernels.native.seats.fcntl.lockf", is_taken)
    with pytest.raises(NoSeatError, match=f"{NUM_SEATS} workers"):
        Seat(tmp_path / "processors")


def test_whether_others_compute_and_rest_of_our_own(tmp_path: Path) -> None:
    table = tmp_path / "processors"
    seat = Seat(table)
    assert not seat.others_compute()

    def computes(index: int, nanoseconds_ago: int) -> None:
        with table.open("r+b") as file:
            file.seek(index * SEAT_BYTES)
            file.write(struct.pack("=q", time.clock_gettime_ns(CLOCK) - nanoseconds_ago))

    computes(NUM_SEATS - 1, -(10**12))
    assert seat.others_compute()
    computes(NUM_SEATS - 1, BUSY_NANOSECONDS)
    assert not seat.others_compute()
    computes(seat.index, -(10**12))
    assert not seat.others_compute()
    seat.rest()
    assert table.read_bytes()[seat.index * SEAT_BYTES :][:8] == bytes(8)


def test_products_are_the_same_whoever_shares(native: NativeLibrary, tmp_path: Path) -> None:
    weight, x = torch.randn(300, 128), torch.randn(9, 128)
    library = NativeLibrary(Path(native.path), native.instruction_set)
    before = PackedLinear(weight)(x)
    assert library.share_processors(tmp_path / "processors", 2)
    pool = library.threads(1)
    assert library.threads(5) == pool  # one of all processors, whatever was asked for
    packed = PackedLinear(weight)
    y = torch.empty(9, 300)
    library.product(pool, packed.structure, x.data_ptr(), 9, y.data_ptr(), None, None)
    assert torch.equal(y, before)


HOG = "import os; os.sched_setaffinity(0, {int(__import__('sys').argv[1])})\nwhile True: pass"
LEND_SECONDS = 60.0


def test_a_helper_that_loses_its_processor_to_another_worker_gets_ours(
    native: NativeLibrary, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Somebody takes one of two processors, not ours; another worker computes at times."""
    table, all_processors = tmp_path / "processors", os.sched_getaffinity(0)
    if len(all_processors) < 2:
        pytest.skip("needs a processor to lose")
    ours, other = sorted(all_processors)[:2]
    request.addfinalizer(lambda: os.sched_setaffinity(0, all_processors))
    os.sched_setaffinity(0, {ours, other})
    library = NativeLibrary(Path(native.path), native.instruction_set)
    assert library.share_processors(table, 2)
    before = set(os.listdir("/proc/self/task"))
    pool = library.threads(1)
    helpers = {int(task) for task in set(os.listdir("/proc/self/task")) - before}
    packed, x = PackedLinear(torch.randn(4096, 1024)), torch.randn(64, 1024)
    expected, y = packed(x), torch.empty(64, 4096)
    hog = subprocess.Popen([sys.executable, "-c", HOG, str(other)])
    num_lent, until = 0, time.monotonic() + LEND_SECONDS

    def compute_at_times() -> None:
        for number in itertools.count():
            if num_lent or time.monotonic() > until:
                return
            with table.open("r+b") as file:  # it computes half of the time
                file.seek((NUM_SEATS - 1) * SEAT_BYTES)
                file.write(struct.pack("=q", time.clock_gettime_ns(CLOCK) if number % 4 < 2 else 0))

    computing = threading.Thread(target=compute_at_times)
    try:
        os.sched_setaffinity(0, {ours})
        computing.start()
        while not num_lent and time.monotonic() < until:
            y.zero_()
            library.product(pool, packed.structure, x.data_ptr(), 64, y.data_ptr(), None, None)
            # Until the next product sends him away again.
            num_lent += any(os.sched_getaffinity(helper) == {ours} for helper in helpers)
            assert torch.equal(y, expected)
    finally:
        until = 0
        computing.join()
        hog.kill()
        hog.wait()
    assert num_lent


def test_without_the_file_nothing_changes(
    native: NativeLibrary, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    library = NativeLibrary(Path(native.path), native.instruction_set)
    assert not library.share_processors(tmp_path / "file" / "processors", 2)
    assert "shares its processors with nobody" in caplog.text
    assert library.threads(1) != library.threads(2)
