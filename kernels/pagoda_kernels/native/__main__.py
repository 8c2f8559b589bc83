"""`python -m pagoda_kernels.native [--all]`: compile for this processor, or for all of its kind.

Images are built with `--all`: they run on processors that nobody knows yet.
"""

import logging
import platform
import subprocess
import sys

from pagoda_kernels.native.library import MACHINES, find_or_compile, native_library

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    if "--all" in sys.argv[1:]:
        names = MACHINES.get(platform.machine(), ())
        for name in names:
            try:
                find_or_compile(name)
            except subprocess.CalledProcessError as error:
                if name == names[-1]:
                    raise
                logging.warning("not %s, which the compiler may not know: %s", name, error.stderr)
    else:
        native_library()
