"""What is fetched ahead of the next layer's attention: a program against the C sources."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pagoda_kernels.native.library import (
    FLAGS,
    INSTRUCTION_SETS,
    SOURCES,
    best_instruction_set,
    processor_flags,
)

PROGRAM = Path(__file__).with_name("upcoming.c")


def test_all_of_it_and_nothing_else_is_fetched(tmp_path: Path) -> None:
    instruction_set = best_instruction_set(processor_flags())
    if instruction_set is None:
        pytest.skip("this processor has no native operators")
    program = tmp_path / "upcoming"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-O3")]
    command = [shutil.which("cc") or "cc", *flags, *INSTRUCTION_SETS[instruction_set][1], "-O0"]
    command += [f"-I{SOURCES}", "-o", str(program), str(PROGRAM), "-lm"]
    subprocess.run(command, check=True, timeout=120)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
