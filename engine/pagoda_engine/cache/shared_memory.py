"""Memory of one process that others on its host can map, read-only.

It is a memfd: in no folder, bound by no size of /dev/shm, and gone when the last process that maps
it is, however that one ended. Another process opens it as ``/proc/<pid>/fd/<fd>``, which the kernel
allows to the same user in the same PID namespace. Knows nothing of what the bytes mean.
"""

import fcntl
import mmap
import os
import re
import secrets

import numpy as np
import numpy.typing as npt
import torch

_HANDLE = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/(pagoda-kv-[0-9a-f]{32})")

ByteArray = npt.NDArray[np.uint8]


class SharedMemoryError(Exception):
    """This memory cannot be made, or not be opened here."""


class SharedMemory:
    """The owner's side.

    Attributes:
        handle: what `open_shared_memory` of another process takes.
        tensor: uint8 ``[num_bytes]``, zeros. It stays after `close`, as long as somebody holds it.
    """

    def __init__(self, num_bytes: int) -> None:
        """Make zeros; memory is taken page by page as it is written.

        Raises:
            SharedMemoryError: this system has no memfd, or no address space for that much.
        """
        name = f"pagoda-kv-{secrets.token_hex(16)}"
        self._file = -1
        try:
            self._file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.fchmod(self._file, 0o600)
            os.ftruncate(self._file, num_bytes)
            # Whoever maps it need not fear that it is cut short.
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            mapping = mmap.mmap(self._file, num_bytes)
        except (AttributeError, OSError, ValueError) as error:  # no such call outside Linux
            self.close()
            raise SharedMemoryError(f"{num_bytes} bytes of shared memory: {error}") from error
        self.tensor = torch.frombuffer(mapping, dtype=torch.uint8)
        self.handle = f"{os.getpid()}/{self._file}/{name}".encode()

    def close(self) -> None:
        """Let nobody open it any more; those who have it mapped keep it. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


def open_shared_memory(handle: bytes, *, num_bytes: int) -> ByteArray:
    """Map another process's memory; the array holds the mapping and may not be written.

    Raises:
        SharedMemoryError: it is not here (its process has ended, or is of another host, container
            or user), or is no memory of ours of at least `num_bytes`.
    """
    match = _HANDLE.fullmatch(handle.decode(errors="replace"))
    if match is None:
        raise SharedMemoryError(f"{handle!r} is no shared memory's handle")
    pid, fd, name = match.groups()
    path = f"/proc/{pid}/fd/{fd}"
    try:
        _check_name(path, name)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_name(f"/proc/self/fd/{file}", name)  # not of a process that got the id since
            status = os.fstat(file)
            if status.st_uid != os.geteuid() or status.st_size < num_bytes:
                raise SharedMemoryError(
                    f"{path} has {status.st_size} bytes of user {status.st_uid}, expected "
                    f"{num_bytes} of user {os.geteuid()}"
                )
            if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise SharedMemoryError(f"{path} may be cut short while it is read")
            mapping = mmap.mmap(file, status.st_size, prot=mmap.PROT_READ)
        finally:
            os.close(file)
    except OSError as error:
        raise SharedMemoryError(f"{path}: {error.strerror}") from error
    return np.frombuffer(mapping, dtype=np.uint8)


def _check_name(link: str, name: str) -> None:
    found = os.readlink(link)
    if found != f"/memfd:{name} (deleted)":
        raise SharedMemoryError(f"{link} is {found}, not {name}")
