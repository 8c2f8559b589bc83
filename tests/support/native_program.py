"""C programs of tests, compiled against the sources of the native library."""

import shutil
import subprocess
from collections.abc import Set
from pathlib import Path

import pytest

from pagoda_kernels.native.library import (
    FLAGS,
    INSTRUCTION_SETS,
    SOURCES,
    best_instruction_set,
    processor_flags,
)

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


def check_program(source: Path, folder: Path, *, without: Set[str] = frozenset()) -> None:
    """Compile a program in `folder` for this processor, and run it: it says what is wrong.

    Args:
        without: flags that the processor is taken not to have.
    """
    instruction_set = best_instruction_set(processor_flags() - without)
    if instruction_set is None:
        pytest.skip("this processor has no native operators")
    program = compiled(source, folder, instruction_set)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
