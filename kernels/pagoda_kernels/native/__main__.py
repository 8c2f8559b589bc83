"""`python -m pagoda_kernels.native [--all]`: compile for this processor, or for all of its kind.

Images are built with `--all`: they run on processors that nobody knows yet.
"""

import logging
import platform
import sys

from pagoda_kernels.native.library import MACHINES, find_or_compile, native_library

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    if "--all" in sys.argv[1:]:
        for name in MACHINES.get(platform.machine(), ()):
            find_or_compile(name)
    else:
        native_library()
