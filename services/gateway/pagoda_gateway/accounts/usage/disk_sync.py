"""Has the kernel write a file's data to its disk, while the event loop goes on.

By Linux' asynchronous I/O: a system call begins it, an eventfd tells of its end. A thread that
calls fdatasync(2) instead does the same; but it wakes up twice beside the event loop, and wants the
interpreter each time. It is there for kernels and file systems that know no other way.
"""

import asyncio
import ctypes
import errno
import logging
import os
import platform
import struct
import sys
from typing import Protocol

logger = logging.getLogger(__name__)

# Of io_setup, io_submit and io_getevents: see <asm/unistd.h>.
_CALLS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}
# struct iocb of <linux/aio_abi.h>: data, key, flags, opcode, priority, file; buffer, bytes,
# offset, reserved; flags, the eventfd.
_IOCB = struct.Struct("<QIIHhIQQqQII")
_FDSYNC, _FLAG_RESFD = 3, 1
_EVENT = struct.Struct("<QQqq")  # struct io_event: data, iocb, result, second result
_NOT_KNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class DiskSync(Protocol):
    """One sync at a time."""

    async def sync(self, file: int) -> None:
        """Return once all that was written to a file is on its disk.

        Raises:
            OSError: it is not.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds; of a sync that has not ended as well."""
        ...


class ThreadSync:
    """In a thread of the event loop's."""

    async def sync(self, file: int) -> None:
        """See `DiskSync`."""
        await asyncio.to_thread(os.fdatasync, file)

    def close(self) -> None:
        """See `DiskSync`."""


class AioSync:
    """By io_submit(2); falls back on a thread where a file system knows nothing of it."""

    def __init__(self) -> None:
        """Set up a context of the kernel's.

        Raises:
            OSError: there is none.
        """
        if platform.machine() not in _CALLS or sys.byteorder != "little":
            raise OSError(errno.ENOSYS, "the numbers of its system calls are not known")
        setup, self._submit, self._get_events = _CALLS[platform.machine()]
        self._system_call = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        if self._system_call(setup, 1, ctypes.byref(self._context)):
            raise _last_error()
        self._request = ctypes.create_string_buffer(_IOCB.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._event_file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._event_file, self._on_event)
        self._ended: asyncio.Future[None] | None = None
        self._instead: ThreadSync | None = None

    async def sync(self, file: int) -> None:
        """See `DiskSync`."""
        if self._instead is not None:
            await self._instead.sync(file)
            return
        request = (0, 0, 0, _FDSYNC, 0, file, 0, 0, 0, 0, _FLAG_RESFD, self._event_file)
        _IOCB.pack_into(self._request, 0, *request)
        if self._system_call(self._submit, self._context, 1, self._requests) != 1:
            error = _last_error()
            if error.errno not in _NOT_KNOWN:
                raise error
            logger.warning("files are synced by a thread: io_submit(2): %s", error.strerror)
            self._instead = ThreadSync()
            await self._instead.sync(file)
            return
        self._ended = self._loop.create_future()
        await self._ended

    def close(self) -> None:
        """See `DiskSync`. The context goes with the process: to destroy it waits for the disk."""
        self._loop.remove_reader(self._event_file)
        os.close(self._event_file)

    def _on_event(self) -> None:
        os.eventfd_read(self._event_file)
        if self._system_call(self._get_events, self._context, 0, 1, self._event, None) != 1:
            return
        *_, result, _ = _EVENT.unpack(self._event)
        ended, self._ended = self._ended, None
        if ended is None or ended.done():  # nobody waits any more
            return
        if result:
            ended.set_exception(OSError(-result, os.strerror(-result)))
        else:
            ended.set_result(None)


def disk_sync() -> DiskSync:
    """Return the best one there is here."""
    try:
        return AioSync()
    except OSError as error:
        logger.warning("files are synced by a thread: %s", error.strerror)
        return ThreadSync()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
