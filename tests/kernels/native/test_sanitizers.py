"""The C sources under the compiler's sanitizers, at random shapes."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.seeds import seed_of_tests

from pagoda_kernels.native.library import (
    FLAGS,
    INSTRUCTION_SETS,
    SOURCES,
    best_instruction_set,
    processor_flags,
)

PROGRAM = Path(__file__).with_name("sanitised.c")
COMPILER = shutil.which("cc") or "cc"


@pytest.mark.parametrize(
    ("checks", "numbers_of_threads"),
    [("address,undefined", (1, 3)), ("thread", (3,))],
    ids=["address", "thread"],
)
def test_nothing_is_found(checks: str, numbers_of_threads: tuple[int, ...], tmp_path: Path) -> None:
    instruction_set = best_instruction_set(processor_flags())
    if instruction_set is None:
        pytest.skip("this processor has no AVX-512")
    program = tmp_path / "sanitised"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-O3")]
    # As it is written: no access is optimised away, and to compile takes a quarter of the time.
    command = [COMPILER, *flags, *INSTRUCTION_SETS[instruction_set][1], "-O0", "-g"]
    command += [f"-fsanitize={checks}", "-fno-sanitize-recover=all", f"-I{SOURCES}"]
    command += ["-o", str(program), str(PROGRAM), "-lm"]
    subprocess.run(command, check=True, timeout=120)
    seed = seed_of_tests()
    for num_threads in numbers_of_threads:
        ran = subprocess.run(
            [str(program), str(seed), str(num_threads)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-4000:]
        assert ran.stdout == "done\n"
