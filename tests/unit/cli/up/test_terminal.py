import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagoda_cli.up.terminal import put, say

SAYS = "import sys; from pagoda_cli.up.terminal import put, say; put('x\\n', sys.stdout); say('y')"


@contextlib.contextmanager
def without_reader() -> Iterator[int]:
    """A pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_line_without_a_reader_is_dropped_and_python_ends_in_peace(name: str) -> None:
    with without_reader() as writer:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, name: writer}
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", SAYS], env=environ, text=True, **streams)

    assert done.returncode == 0
    assert (done.stdout or "x\n", done.stderr or "pagoda: y\n") == ("x\n", "pagoda: y\n")


def test_what_a_full_disk_did_not_take_is_not_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "errors").open("w") as errors:
        monkeypatch.setattr("sys.stderr", errors)
        with open("/dev/full", "wb") as full, (tmp_path / "errors").open("ab") as room:
            os.dup2(full.fileno(), errors.fileno())
            say("dropped")
            os.dup2(room.fileno(), errors.fileno())
        put("kept\n", errors)

    assert (tmp_path / "errors").read_text() == "kept\n"


def test_a_line_that_nobody_reads_now_is_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 65536)
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as errors, os.fdopen(reader, "rb") as unread:
        monkeypatch.setattr("sys.stderr", errors)
        say("dropped")  # or waits for ever
        monkeypatch.undo()
        os.set_blocking(unread.fileno(), False)
        while unread.read(65536):
            pass
        put("kept\n", errors)
        assert unread.read() == b"kept\n"


def test_a_stream_that_was_closed_from_the_start_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    say("dropped")
    put("dropped", None)
