"""Opens files of folders that may be anybody's: what is a pipe or a device is refused at once.

Knows no format.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, opened to be read; the caller closes it. Never blocks.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO waits for a writer
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(file, "rb")
