import subprocess
import sys
import time

import psutil
import pytest
from peers.watch import Moment, Watch, seen

HOLDS_64_MIB = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c',"
    " 'x = bytearray(64 << 20); print(1, flush=True); input()'], stdin=subprocess.PIPE)\n"
    "input(); child.communicate(b'x')"
)


def test_what_neither_server_nor_client_used_is_foreign(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    first = Moment(wall=100.0, busy=50.0, steal=1.0, server=10.0, client=2.0)
    last = Moment(wall=110.0, busy=65.0, steal=3.0, server=20.0, client=3.0)
    found = seen(first, last, 7)
    assert found.server_cores == pytest.approx(1.0)
    assert found.foreign_percent == pytest.approx(100 * (15 - 10 - 1) / 20)
    assert found.steal_percent == pytest.approx(10.0)
    assert found.peak_memory_bytes == 7
    assert found.is_loud


def test_clocks_that_disagree_a_little_give_zero():
    first = Moment(wall=0.0, busy=0.0, steal=0.0, server=0.0, client=0.0)
    last = Moment(wall=10.0, busy=4.99, steal=0.0, server=4.5, client=0.5)
    assert seen(first, last, 0).foreign_percent == 0
    assert not seen(first, last, 0).is_loud


def test_memory_and_cpu_of_grandchildren_count():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_64_MIB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"1\n"
        with Watch(process.pid) as watch:
            begun = time.process_time()
            while time.process_time() - begun < 0.02:
                pass
        process.communicate(b"x\n")
    assert 64 << 20 < watch.seen.peak_memory_bytes < 256 << 20
    assert watch.seen.server_cores < 1


def test_a_server_that_died_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(psutil.NoSuchProcess), Watch(process.pid):
        pass
