"""Whose a folder is: held by the process that made it, free for others once that one is dead.

By flock(2), which the kernel lets go of however a process ends; also between containers that share
a volume of one host. Knows nothing of what lies in the folder.
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

_LOCK = "lock"


class FolderLock:
    """A folder that is this process's alone."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self._file = file

    @classmethod
    def make(cls, folder: Path) -> "FolderLock":
        """Make a new folder and hold it. Nobody sees it before it is held.

        Raises:
            OSError: it is there already, or cannot be made.
        """
        draft = folder.with_name(f".{folder.name}")
        draft.mkdir(mode=0o700, parents=True)
        file = os.open(draft / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(folder)
        sync_folder(folder.parent)
        return cls(folder, file)

    @classmethod
    def take(cls, folder: Path) -> "FolderLock | None":
        """Hold a folder that nobody holds; None: somebody does, or it is gone."""
        try:
            file = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(folder / _LOCK)):
                return cls(folder, file)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(file)
        return None

    @staticmethod
    def is_left(folder: Path) -> bool:
        """Return whether a folder is what `delete` has left: its process ended within."""
        return not (folder / _LOCK).exists()

    def release(self, *, delete: bool) -> None:
        """Let go, and delete the folder while it is held if nothing of it is needed."""
        if delete:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.folder)
        os.close(self._file)


def folders_of(root: Path) -> list[Path]:
    """Return the folders that somebody made and named below `root`."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return []


def sync_folder(folder: Path) -> None:
    """Make names in a folder last."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
