"""A file system of its own that can be filled up, where this process may mount one."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SIZE_BYTES = 32 << 20
_CHUNK = bytes(1 << 16)


@dataclass(frozen=True)
class SmallDisk:
    """A mounted tmpfs of 32 MiB."""

    path: Path

    def fill(self) -> None:
        """Leave no byte of it free."""
        for chunk in (_CHUNK, _CHUNK[:1]):
            with contextlib.suppress(OSError), (self.path / "filler").open("ab", buffering=0) as f:
                while f.write(chunk):
                    pass

    def make_room(self) -> None:
        """Take back what `fill` took."""
        (self.path / "filler").unlink()


@contextlib.contextmanager
def mounted_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount a small disk at `path`; skips the test where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system can be mounted here ({error})")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
