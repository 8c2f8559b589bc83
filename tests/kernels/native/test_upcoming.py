"""What is fetched ahead of the next layer's attention: a program against the C sources."""

import subprocess
from pathlib import Path

import pytest
from support.native_program import compiled

from pagoda_kernels.native.library import best_instruction_set, processor_flags

PROGRAM = Path(__file__).with_name("upcoming.c")


def test_all_of_it_and_nothing_else_is_fetched(tmp_path: Path) -> None:
    instruction_set = best_instruction_set(processor_flags())
    if instruction_set is None:
        pytest.skip("this processor has no native operators")
    program = compiled(PROGRAM, tmp_path, instruction_set)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
