"""Which tasks a step's attention has: a program against the C sources."""

import subprocess
from pathlib import Path

import pytest
from support.native_program import compiled

from pagoda_kernels.native.library import best_instruction_set, processor_flags

PROGRAM = Path(__file__).with_name("attention_tasks.c")


def test_each_key_is_walked_once_for_each_row_that_sees_it(tmp_path: Path) -> None:
    instruction_set = best_instruction_set(processor_flags())
    if instruction_set is None:
        pytest.skip("this processor has no native operators")
    program = compiled(PROGRAM, tmp_path, instruction_set)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
