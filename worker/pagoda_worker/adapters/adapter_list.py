"""The file that says which adapters of a model are to be loaded, beside the adapters themselves.

All workers that see the folder follow it, so that who joins or restarts has what the others have.
Knows names and paths. Knows nothing of what an adapter is.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from pagoda_engine.adapters.adapter_folder import CONFIG_NAME, WEIGHTS_NAME
from pagoda_runtime.messaging import subjects
from pagoda_worker.errors import AdapterRefusedError

logger = logging.getLogger(__name__)

MAX_LISTED = 1024
MAX_BYTES = 1 << 20


class AdapterList:
    """One model's list. Every call may block for a disk."""

    def __init__(self, folder: Path, model: str) -> None:
        """Name the files; none is touched.

        Args:
            folder: of all adapters.
            model: whose list it is.
        """
        self.folder = folder.resolve()
        self._path = self.folder / f".loaded-{subjects.token(model)}.json"
        self._lock = self._path.with_suffix(".lock")

    def resolve(self, path: str) -> Path:
        """Return the folder of an adapter: `path`, relative or not, below the list's own.

        Raises:
            AdapterRefusedError: it or one of its files is elsewhere, links followed.
        """
        if "\0" in path:
            raise AdapterRefusedError("lora_path has a zero byte")
        try:
            found = (self.folder / path).resolve()
            files = [(found / name).resolve() for name in (CONFIG_NAME, WEIGHTS_NAME)]
        except (OSError, RuntimeError) as error:
            raise AdapterRefusedError(f"lora_path {path[:200]!r} cannot be followed") from error
        is_below = all(each.is_relative_to(self.folder) for each in (found, *files))
        if not is_below or found == self.folder:
            raise AdapterRefusedError(
                f"lora_path is {path[:200]!r}, must be below the workers' PAGODA_ADAPTER_DIR, and "
                "so must what its links lead to"
            )
        return found

    def stamp(self) -> tuple[int, int]:
        """Return what changes with the file; zeros: there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0)
        return (found.st_mtime_ns, found.st_ino)

    def read(self) -> dict[str, str]:
        """Return paths by name; what cannot be read is an empty list, and the log says so."""
        try:
            return self._read()
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read, so it lists no adapter: %s", self._path, error)
            return {}

    def change(self, name: str, path: str) -> None:
        """Put a name on the list; with an empty path take it off.

        Raises:
            AdapterRefusedError: it cannot be written, or is too long.
        """
        try:
            with self._locked():
                listed = self._read()
                changed = {**listed, name: path} if path else {**listed}
                if not path:
                    changed.pop(name, None)
                if changed == listed:
                    return
                if len(changed) > MAX_LISTED:
                    raise AdapterRefusedError(f"{self._path} lists {MAX_LISTED} adapters already")
                text = json.dumps(changed, indent=1, sort_keys=True)
                if len(text.encode()) > MAX_BYTES:
                    raise AdapterRefusedError(
                        f"{self._path} would have {len(text.encode())} bytes; the limit is "
                        f"{MAX_BYTES}: load fewer adapters, or from shorter paths"
                    )
                self._write(text)
        except (ValueError, TypeError) as error:
            raise AdapterRefusedError(
                f"{self._path} cannot be read ({error}): mend it, or remove it"
            ) from error
        except OSError as error:
            raise AdapterRefusedError(
                f"{self._path} cannot be written ({error.strerror}), so that a restart would "
                "forget it: let the workers write PAGODA_ADAPTER_DIR"
            ) from error

    def _read(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                listed = json.loads(file.read(MAX_BYTES))
        except FileNotFoundError:
            return {}
        return {str(name): str(path) for name, path in dict(listed).items()}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, text: str) -> None:
        written = self._path.with_suffix(f".{os.getpid()}.tmp")
        with written.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._path)
