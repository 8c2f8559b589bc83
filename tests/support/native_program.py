"""C programs of tests, compiled against the sources of the native library."""

import shutil
import subprocess
from pathlib import Path

from pagoda_kernels.native.library import FLAGS, INSTRUCTION_SETS, SOURCES

COMPILER = shutil.which("cc") or "cc"


def compiled(source: Path, folder: Path, instruction_set: str, *further: str) -> Path:
    """Return the program, in `folder`, for a processor with these instructions.

    As it is written: no access is optimised away, and to compile takes a quarter of the time.
    """
    program = folder / source.stem
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-O3")]
    command = [COMPILER, *flags, *INSTRUCTION_SETS[instruction_set][1], "-O0", *further]
    command += [f"-I{SOURCES}", "-o", str(program), str(source), "-lm"]
    subprocess.run(command, check=True, timeout=120)
    return program
